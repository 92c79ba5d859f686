/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver that computes nothing. It is built as libcuda.so.1 and found before the real one. A
 * test sets the properties of its device; it counts every call and keeps the last launch.
 * python/tests/devices.py has the struct once more.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "cuda/driver/api.h"

struct fake_cuda {
    /* The properties of the fake device. */
    int n_devices, major, minor, shared_bytes; /* shared_bytes: most that a kernel takes */
    int from_ptx, load_ms; /* it takes no code for sm_90a; an image takes so long to load */
    int error;             /* that it returns; 0: 700 */
    const char *fails;     /* this call returns an error */
    const char *missing;   /* this call is not in the driver */
    const char *lacks;     /* no image has a kernel of this name */
    int captures, copies;  /* a graph; from the device, whose memory is then the host's */
    /* Counts of calls. */
    int n_calls[64];             /* in the order of GDN_CU_CALLS */
    int depth;                   /* contexts pushed and not popped */
    int capture_mode;            /* of the thread */
    struct gdn_cu_config launch; /* the last one */
    const char *kernel;          /* its name */
    char args[4096];
};

/* Number of a call in n_calls. */
enum fake_call {
#define FAKE_NUMBER(name, parameters) FAKE_##name,
    GDN_CU_CALLS(FAKE_NUMBER)
#undef FAKE_NUMBER
        FAKE_N_CALLS
};

#endif
