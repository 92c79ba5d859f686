/* SPDX-License-Identifier: Apache-2.0 */
/* os.h for Windows, 10 and newer. */
#define WIN32_LEAN_AND_MEAN
#include "core/os/os.h"

#include <windows.h>

#include <malloc.h>
#include <process.h>
#include <stdlib.h>
#include <string.h>

/* ---- Threads ------------------------------------------------------------------------------- */

_Static_assert(sizeof(HANDLE) <= sizeof(uint64_t), "the id of a thread");
_Static_assert(sizeof(SRWLOCK) <= sizeof(struct gdn_os_mutex), "room of a mutex");
_Static_assert(sizeof(CONDITION_VARIABLE) <= sizeof(struct gdn_os_condition),
               "room of a condition");

static unsigned __stdcall run_thread(void *thread)
{
    const struct gdn_os_thread *t = thread;
    t->run(t->arg);
    return 0;
}

/* Signals of Windows come in threads of their own. */
bool gdn_os_thread_start(struct gdn_os_thread *thread, void (*run)(void *), void *arg)
{
    thread->run = run;
    thread->arg = arg;
    thread->id = (uint64_t)_beginthreadex(NULL, 0, run_thread, thread, 0, NULL);
    return thread->id != 0;
}

void gdn_os_thread_join(struct gdn_os_thread *thread)
{
    const HANDLE handle = (HANDLE)(uintptr_t)thread->id;
    WaitForSingleObject(handle, INFINITE);
    CloseHandle(handle);
}

static SRWLOCK *mutex_of(struct gdn_os_mutex *mutex) { return (void *)mutex->room; }
static CONDITION_VARIABLE *condition_of(struct gdn_os_condition *c) { return (void *)c->room; }

void gdn_os_mutex_init(struct gdn_os_mutex *mutex) { InitializeSRWLock(mutex_of(mutex)); }
void gdn_os_mutex_lock(struct gdn_os_mutex *mutex) { AcquireSRWLockExclusive(mutex_of(mutex)); }
void gdn_os_mutex_unlock(struct gdn_os_mutex *mutex) { ReleaseSRWLockExclusive(mutex_of(mutex)); }
void gdn_os_mutex_destroy(struct gdn_os_mutex *mutex) { (void)mutex; }

void gdn_os_condition_init(struct gdn_os_condition *condition)
{
    InitializeConditionVariable(condition_of(condition));
}
void gdn_os_condition_wait(struct gdn_os_condition *condition, struct gdn_os_mutex *mutex)
{
    SleepConditionVariableSRW(condition_of(condition), mutex_of(mutex), INFINITE, 0);
}
void gdn_os_condition_wake_one(struct gdn_os_condition *condition)
{
    WakeConditionVariable(condition_of(condition));
}
void gdn_os_condition_wake_all(struct gdn_os_condition *condition)
{
    WakeAllConditionVariable(condition_of(condition));
}
void gdn_os_condition_destroy(struct gdn_os_condition *condition) { (void)condition; }

/* ---- The process --------------------------------------------------------------------------- */

int64_t gdn_os_process(void) { return GetCurrentProcessId(); }

/* The mask is 0 for a process with threads in several groups of processors. */
int gdn_os_processors(void)
{
    DWORD_PTR mine = 0, all = 0;
    int n = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all))
        n = __builtin_popcountll((unsigned long long)mine);
    if (n == 0) n = (int)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return n < 1 ? 1 : n;
}

const char *gdn_os_environment(const char *name) { return getenv(name); }

/* Converts whole seconds and the rest apart: ticks times 10^9 would not fit 64 bits after some
 * minutes. */
int64_t gdn_os_now_ns(void)
{
    LARGE_INTEGER per_second, ticks;
    QueryPerformanceFrequency(&per_second);
    QueryPerformanceCounter(&ticks);
    const int64_t f = per_second.QuadPart, t = ticks.QuadPart;
    return t / f * 1000000000 + t % f * 1000000000 / f;
}

/* ---- Memory -------------------------------------------------------------------------------- */

void *gdn_os_alloc(size_t bytes, size_t align)
{
    if (bytes > SIZE_MAX - align) return NULL;
    return _aligned_malloc((bytes + align - 1) & ~(align - 1), align);
}

void gdn_os_free(void *memory) { _aligned_free(memory); }

/* ---- Libraries ----------------------------------------------------------------------------- */

/* Does not search the current folder, where anybody may have put a library. */
void *gdn_os_library_open(const char *name)
{
    return (void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

void *gdn_os_library_symbol(void *library, const char *name)
{
    const FARPROC found = GetProcAddress((HMODULE)library, name);
    void *symbol;
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}

void gdn_os_library_close(void *library) { FreeLibrary((HMODULE)library); }
