/* SPDX-License-Identifier: Apache-2.0 */
/* program.h for Windows, 10 and newer. */
#define WIN32_LEAN_AND_MEAN
#include "core/os/program.h"

#include <windows.h>

#include <process.h>
#include <stdlib.h>

bool gdn_os_set_environment(const char *name, const char *value)
{
    return _putenv_s(name, value ? value : "") == 0;
}

void gdn_os_become(char **argv)
{
    const intptr_t status = _spawnv(_P_WAIT, argv[0], (const char *const *)argv);
    if (status != -1) exit((int)status);
}

void gdn_os_yield(void) { SwitchToThread(); }

static const char *fault_name(DWORD code)
{
    switch (code) {
    case EXCEPTION_ACCESS_VIOLATION: return "an access violation";
    case EXCEPTION_IN_PAGE_ERROR: return "an error of a page";
    case EXCEPTION_DATATYPE_MISALIGNMENT: return "a misaligned access";
    case EXCEPTION_ILLEGAL_INSTRUCTION: return "an illegal instruction";
    case EXCEPTION_INT_DIVIDE_BY_ZERO:
    case EXCEPTION_FLT_DIVIDE_BY_ZERO:
    case EXCEPTION_FLT_INVALID_OPERATION: return "a fault of arithmetic";
    default: return NULL;
    }
}

static CONTEXT fault_return;
static const char *volatile fault;

static LONG CALLBACK on_fault(EXCEPTION_POINTERS *info)
{
    const char *name = fault_name(info->ExceptionRecord->ExceptionCode);
    if (!name) return EXCEPTION_CONTINUE_SEARCH;
    fault = name;
    *info->ContextRecord = fault_return;
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* After a fault the program goes on where the context was captured, with the fault's name set. */
const char *gdn_os_catch(void (*run)(void *arg), void *arg)
{
    void *volatile handler = AddVectoredExceptionHandler(1, on_fault);
    fault = NULL;
    RtlCaptureContext(&fault_return);
    if (!fault) run(arg);
    RemoveVectoredExceptionHandler(handler);
    return fault;
}

/* ---- Pages ---------------------------------------------------------------------------------- */

size_t gdn_os_page_bytes(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

void *gdn_os_pages(size_t bytes)
{
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

bool gdn_os_pages_forbid(void *pages, size_t bytes)
{
    DWORD before;
    return VirtualProtect(pages, bytes, PAGE_NOACCESS, &before);
}

void gdn_os_pages_free(void *pages, size_t bytes)
{
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}
