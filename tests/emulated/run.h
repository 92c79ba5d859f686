/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that the emulated driver can launch. */
#ifndef GDN_TESTS_EMULATED_RUN_H
#define GDN_TESTS_EMULATED_RUN_H

struct emulated_kernel {
    const char *name;
    void (*kernel)(void);                                /* of any type */
    void (*run)(void (*kernel)(void), const void *args); /* one thread of it */
    unsigned cluster;                                    /* blocks */
    emulated_kernel *next;

    static emulated_kernel *all;

    template <class Args>
    emulated_kernel(const char *its_name, void (*its_kernel)(Args), unsigned its_cluster)
        : name(its_name), kernel((void (*)(void))its_kernel), run(call<Args>), cluster(its_cluster),
          next(all)
    {
        all = this;
    }
    template <class Args> static void call(void (*kernel)(void), const void *args)
    {
        ((void (*)(Args))kernel)(*(const Args *)args);
    }
};

#endif
