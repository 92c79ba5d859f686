/* SPDX-License-Identifier: Apache-2.0 */
/* Sanitizers of this program, 1 or 0: gcc defines macros, clang answers __has_feature(). */
#ifndef SANITIZED_H
#define SANITIZED_H

#ifndef __has_feature
#define __has_feature(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
enum { WITH_ASAN = 1 };
#else
enum { WITH_ASAN = 0 };
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { WITH_TSAN = 1 };
#else
enum { WITH_TSAN = 0 };
#endif

#endif
