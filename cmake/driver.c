/* SPDX-License-Identifier: Apache-2.0 */
/* Exit status 0: the driver of a GPU is here. images.cmake runs it. */
#include <dlfcn.h>

int main(void) { return !dlopen("libcuda.so.1", RTLD_NOW); }
