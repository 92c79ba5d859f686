/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config_keys.h"

#include <stddef.h>

/* Values that change no text, even that of the most likely tokens. */
#define GENERATION_KEYS                                                                            \
    { "eos_token_id", NULL }, { "bos_token_id", NULL }, { "pad_token_id", NULL },                  \
        { "sep_token_id", NULL }, { "decoder_start_token_id", NULL },                              \
        { "transformers_version", NULL }, { "do_sample", NULL }, { "temperature", NULL },          \
        { "top_k", NULL }, { "top_p", NULL }, { "min_p", NULL }, { "top_h", NULL },                \
        { "typical_p", NULL }, { "epsilon_cutoff", NULL }, { "eta_cutoff", NULL },                 \
        { "max_length", NULL }, { "max_new_tokens", NULL }, { "max_time", NULL },                  \
        { "early_stopping", NULL }, { "length_penalty", NULL }, { "num_return_sequences", NULL },  \
        { "use_cache", NULL }, { "cache_implementation", NULL }, { "cache_config", NULL },         \
        { "return_legacy_cache", NULL }, { "output_attentions", NULL },                            \
        { "output_hidden_states", NULL }, { "output_scores", NULL }, { "output_logits", NULL },    \
        { "return_dict_in_generate", NULL }, { "remove_invalid_values", NULL },                    \
        { "renormalize_logits", NULL }, { "trust_remote_code", NULL }, { "low_memory", NULL },     \
        { "disable_compile", NULL }, { "compile_config", NULL }, { "prefill_chunk_size", NULL },   \
        { "is_assistant", NULL }, { "num_assistant_tokens", NULL },                                \
        { "num_assistant_tokens_schedule", NULL }, { "assistant_confidence_threshold", NULL },     \
        { "assistant_lookbehind", NULL }, { "target_lookbehind", NULL },                           \
        { "assistant_early_exit", NULL }, { "prompt_lookup_num_tokens", NULL },                    \
        { "max_matching_ngram_size", NULL }, { "repetition_penalty", "1" },                        \
        { "encoder_repetition_penalty", "1" }, { "presence_penalty", "0" },                        \
        { "frequency_penalty", "0" }, { "no_repeat_ngram_size", "0" },                             \
        { "encoder_no_repeat_ngram_size", "0" }, { "min_length", "0" }, { "min_new_tokens", "0" }, \
        { "num_beams", "1" }, { "num_beam_groups", "1" }, { "diversity_penalty", "0" },            \
        { "guidance_scale", "1" }, { "token_healing", "false" }, { "penalty_alpha", "0" },         \
        { "bad_words_ids", "[]" }, { "suppress_tokens", "[]" }, { "begin_suppress_tokens", "[]" }, \
    {                                                                                              \
        "sequence_bias", "{}"                                                                      \
    }

const struct json_key config_generation_keys[] = { GENERATION_KEYS, { NULL, NULL } };

/* Keys of every family. The model is made from MODEL_KEYS and HEAD_KEYS. FORM_KEYS have one value
 * here, because the model has no other form. NOTE_KEYS are of training, or notes. MLX writes
 * `quantization`: its tensors are refused by their names. */
#define MODEL_KEYS                                                                          \
    { "model_type", NULL }, { "num_hidden_layers", NULL }, { "num_attention_heads", NULL }, \
        { "vocab_size", NULL }, { "hidden_size", NULL }, { "intermediate_size", NULL },     \
        { "rms_norm_eps", NULL }, { "layer_types", NULL },                                  \
    {                                                                                       \
        "linear_conv_kernel_dim", NULL                                                      \
    }
#define HEAD_KEYS                                                                            \
    { "num_key_value_heads", NULL }, { "head_dim", NULL }, { "linear_num_key_heads", NULL }, \
        { "linear_num_value_heads", NULL }, { "linear_key_head_dim", NULL },                 \
    {                                                                                        \
        "linear_value_head_dim", NULL                                                        \
    }
#define FORM_KEYS                                                                    \
    { "tie_word_embeddings", "true|false" }, { "hidden_act", "\"silu\"|\"swish\"" }, \
        { "attention_bias", "false" }, { "is_encoder_decoder", "false" },            \
        { "add_cross_attention", "false" }, { "tie_encoder_decoder", "false" },      \
    {                                                                                \
        "pruned_heads", "{}"                                                         \
    }
#define NOTE_KEYS                                                                                  \
    { "architectures", NULL }, { "max_position_embeddings", NULL }, { "attention_dropout", NULL }, \
        { "initializer_range", NULL }, { "output_router_logits", NULL }, { "dtype", NULL },        \
        { "torch_dtype", NULL }, { "return_dict", NULL }, { "torchscript", NULL },                 \
        { "use_bfloat16", NULL }, { "tf_legacy_loss", NULL }, { "chunk_size_feed_forward", NULL }, \
        { "cross_attention_hidden_size", NULL }, { "is_decoder", NULL },                           \
        { "finetuning_task", NULL }, { "task_specific_params", NULL }, { "problem_type", NULL },   \
        { "id2label", NULL }, { "label2id", NULL }, { "num_labels", NULL },                        \
        { "tokenizer_class", NULL }, { "prefix", NULL }, { "cls_token_id", NULL },                 \
        { "quantization", NULL }, { "unsloth_fixed", NULL }, { "unsloth_version", NULL },          \
    {                                                                                              \
        "model_name", NULL                                                                         \
    }

static const struct json_key qwen_keys[] = {
    GENERATION_KEYS,
    MODEL_KEYS,
    FORM_KEYS,
    NOTE_KEYS,
    /* The model: config.c reads these. */
    HEAD_KEYS,
    { "full_attention_interval", NULL },
    { "rope_parameters", NULL },
    { "rope_scaling", NULL },
    { "rope_theta", NULL },
    { "partial_rotary_factor", NULL },
    { "text_config", NULL },
    /* Keys of the model that have one value here, since it has no other form. */
    { "mlp_bias", "false" },
    { "attn_output_gate", "true" },
    { "output_gate_type", "\"silu\"|\"swish\"|\"sigmoid\"" },
    { "use_sliding_window", "false" },
    { "num_experts", "0" },
    { "mlp_only_layers", "[]" },
    /* Parts that a text alone does not reach, and training. */
    { "vision_config", NULL },
    { "image_token_id", NULL },
    { "video_token_id", NULL },
    { "vision_start_token_id", NULL },
    { "vision_end_token_id", NULL },
    { "language_model_only", NULL },
    { "mtp_num_hidden_layers", NULL },
    { "mtp_use_dedicated_embeddings", NULL },
    { "mamba_ssm_dtype", NULL },
    { "max_window_layers", NULL },
    { "decoder_sparse_step", NULL },
    { "router_aux_loss_coef", NULL },
    { NULL, NULL },
};

static const struct json_key olmo_keys[] = {
    GENERATION_KEYS,
    MODEL_KEYS,
    FORM_KEYS,
    NOTE_KEYS,
    /* The model: config.c reads these. */
    HEAD_KEYS,
    { "rope_parameters", NULL },
    { "rope_scaling", NULL },
    { "rope_theta", NULL },
    { "linear_allow_neg_eigval", "true|false" },
    /* The model: it has no other form. */
    { "mlp_bias", "false" },
    /* Parameters before training. */
    { "linear_a_log_min", NULL },
    { "linear_a_log_max", NULL },
    { "linear_dt_min", NULL },
    { "linear_dt_max", NULL },
    { "linear_dt_init_floor", NULL },
    { NULL, NULL },
};

static const struct json_key kimi_keys[] = {
    GENERATION_KEYS,
    MODEL_KEYS,
    FORM_KEYS,
    NOTE_KEYS,
    /* The model: config.c reads these. */
    { "linear_num_heads", NULL },
    { "linear_head_dim", NULL },
    { "linear_attn_config", NULL },
    { "kv_lora_rank", NULL },
    { "qk_nope_head_dim", NULL },
    { "qk_rope_head_dim", NULL },
    { "v_head_dim", NULL },
    { "mlp_layer_types", NULL },
    { "first_k_dense_replace", NULL },
    /* The model: it has no other form. */
    { "q_lora_rank", "null" },
    { "mla_use_nope", "true" },
    /* Keys of mixtures of experts, which no layer may be; and those that follow from others. */
    { "num_key_value_heads", NULL },
    { "head_dim", NULL },
    { "qk_head_dim", NULL },
    { "rope_theta", NULL },
    { "num_experts", NULL },
    { "num_experts_per_token", NULL },
    { "num_shared_experts", NULL },
    { "num_expert_group", NULL },
    { "topk_group", NULL },
    { "topk_method", NULL },
    { "use_grouped_topk", NULL },
    { "moe_intermediate_size", NULL },
    { "moe_renormalize", NULL },
    { "moe_layer_freq", NULL },
    { "moe_router_activation_func", NULL },
    { "routed_scaling_factor", NULL },
    { "num_nextn_predict_layers", "0" },
    { "model_max_length", NULL },
    { "pretraining_tp", NULL },
    { NULL, NULL },
};

const struct json_key *config_keys(enum family family)
{
    static const struct json_key *const keys[] = {
        [QWEN3_5] = qwen_keys, [OLMO_HYBRID] = olmo_keys, [KIMI_LINEAR] = kimi_keys
    };
    return keys[family];
}

const struct json_key config_kda_keys[] = {
    { "num_heads", NULL },        { "head_dim", NULL },   { "short_conv_kernel_size", NULL },
    { "full_attn_layers", NULL }, { "kda_layers", NULL }, { NULL, NULL },
};

const struct json_key config_rope_keys[] = {
    { "rope_type", "\"default\"" },
    { "type", "\"default\"|\"mrope\"" },
    { "rope_theta", NULL },
    { "partial_rotary_factor", NULL },
    { "original_max_position_embeddings", NULL },
    { "mrope_section", NULL }, /* the three positions of a text's token are equal */
    { "mrope_interleaved", NULL },
    { NULL, NULL },
};
