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

const struct json_key config_keys[] = {
    GENERATION_KEYS,
    /* The model: config.c reads these. */
    { "model_type", NULL },
    { "text_config", NULL },
    { "num_hidden_layers", NULL },
    { "num_attention_heads", NULL },
    { "num_key_value_heads", NULL },
    { "head_dim", NULL },
    { "linear_num_key_heads", NULL },
    { "linear_num_value_heads", NULL },
    { "linear_key_head_dim", NULL },
    { "linear_value_head_dim", NULL },
    { "linear_conv_kernel_dim", NULL },
    { "vocab_size", NULL },
    { "hidden_size", NULL },
    { "intermediate_size", NULL },
    { "rms_norm_eps", NULL },
    { "layer_types", NULL },
    { "full_attention_interval", NULL },
    { "rope_parameters", NULL },
    { "rope_scaling", NULL },
    { "rope_theta", NULL },
    { "partial_rotary_factor", NULL },
    /* The model: it has no other form. */
    { "tie_word_embeddings", "true|false" },
    { "hidden_act", "\"silu\"|\"swish\"" },
    { "attention_bias", "false" },
    { "mlp_bias", "false" },
    { "attn_output_gate", "true" },
    { "output_gate_type", "\"silu\"|\"swish\"|\"sigmoid\"" },
    { "use_sliding_window", "false" },
    { "num_experts", "0" },
    { "mlp_only_layers", "[]" },
    { "is_encoder_decoder", "false" },
    { "add_cross_attention", "false" },
    { "tie_encoder_decoder", "false" },
    { "pruned_heads", "{}" },
    /* Parts that a text alone does not reach, training, and notes. */
    { "architectures", NULL },
    { "vision_config", NULL },
    { "image_token_id", NULL },
    { "video_token_id", NULL },
    { "vision_start_token_id", NULL },
    { "vision_end_token_id", NULL },
    { "language_model_only", NULL },
    { "mtp_num_hidden_layers", NULL },
    { "mtp_use_dedicated_embeddings", NULL },
    { "mamba_ssm_dtype", NULL },
    { "max_position_embeddings", NULL },
    { "max_window_layers", NULL },
    { "decoder_sparse_step", NULL },
    { "attention_dropout", NULL },
    { "initializer_range", NULL },
    { "router_aux_loss_coef", NULL },
    { "output_router_logits", NULL },
    { "dtype", NULL },
    { "torch_dtype", NULL },
    { "return_dict", NULL },
    { "torchscript", NULL },
    { "use_bfloat16", NULL },
    { "tf_legacy_loss", NULL },
    { "chunk_size_feed_forward", NULL },
    { "cross_attention_hidden_size", NULL },
    { "is_decoder", NULL },
    { "finetuning_task", NULL },
    { "task_specific_params", NULL },
    { "problem_type", NULL },
    { "id2label", NULL },
    { "label2id", NULL },
    { "num_labels", NULL },
    { "tokenizer_class", NULL },
    { "prefix", NULL },
    { "cls_token_id", NULL },
    { "quantization", NULL }, /* of MLX: the tensors are refused by their names */
    { "unsloth_fixed", NULL },
    { "unsloth_version", NULL },
    { "model_name", NULL },
    { NULL, NULL },
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
