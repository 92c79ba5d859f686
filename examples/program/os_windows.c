/* SPDX-License-Identifier: Apache-2.0 */
/* os.h for Windows, 10 and newer. Paths are UTF-8 here and UTF-16 in the calls. */
#define WIN32_LEAN_AND_MEAN
#include "program/os.h"

#include <windows.h>

#include <corecrt_startup.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool to_wide(const char *text, wchar_t wide[OS_PATH])
{
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, OS_PATH) > 0;
}

/* Returns memory for the program's life. */
static char *to_utf8(const wchar_t *wide)
{
    const int bytes = WideCharToMultiByte(CP_UTF8, 0, wide, -1, NULL, 0, NULL, NULL);
    char *text = malloc((size_t)bytes + 1);
    if (!text) abort();
    WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, bytes, NULL, NULL);
    return text;
}

/* Returns the error of errno.h for the last one of Windows. */
static int last_error(void)
{
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_NAME:
    case ERROR_BAD_PATHNAME: return ENOENT;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION: return EACCES;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: return EEXIST;
    case ERROR_DIRECTORY: return ENOTDIR;
    case ERROR_DISK_FULL: return ENOSPC;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY:
    case ERROR_COMMITMENT_LIMIT: return ENOMEM;
    default: return EIO;
    }
}

/* ---- The program --------------------------------------------------------------------------- */

/* Lines end as on other systems, and text is not translated. */
char **os_arguments(int argc, char **argv)
{
    SetConsoleOutputCP(CP_UTF8);
    _setmode(_fileno(stdout), _O_BINARY);
    _setmode(_fileno(stderr), _O_BINARY);
    if (_configure_wide_argv(_crt_argv_unexpanded_arguments)) return argv;
    int n = 0;
    while (__wargv[n]) n++;
    if (n != argc) return argv;
    char **own = calloc((size_t)argc + 1, sizeof *own);
    if (!own) abort();
    for (int i = 0; i < argc; i++) own[i] = to_utf8(__wargv[i]);
    return own;
}

bool os_is_terminal(FILE *stream) { return _isatty(_fileno(stream)); }

/* Seconds and the rest apart, since their product would not fit after some minutes. */
int64_t os_now_ns(void)
{
    LARGE_INTEGER per_second, ticks;
    QueryPerformanceFrequency(&per_second);
    QueryPerformanceCounter(&ticks);
    const int64_t f = per_second.QuadPart, t = ticks.QuadPart;
    return t / f * 1000000000 + t % f * 1000000000 / f;
}

/* ---- Threads ------------------------------------------------------------------------------- */

struct os_thread {
    HANDLE handle;
    void (*run)(void *arg);
    void *arg;
};

static unsigned __stdcall run_thread(void *thread)
{
    const struct os_thread *t = thread;
    t->run(t->arg);
    return 0;
}

/* Signals of Windows come in threads of their own. */
struct os_thread *os_thread_start(void (*run)(void *), void *arg)
{
    struct os_thread *t = malloc(sizeof *t);
    if (!t) return NULL;
    t->run = run;
    t->arg = arg;
    t->handle = (HANDLE)_beginthreadex(NULL, 0, run_thread, t, 0, NULL);
    if (t->handle) return t;
    free(t);
    return NULL;
}

void os_thread_join(struct os_thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
    free(thread);
}

struct os_gate {
    SRWLOCK lock;
    CONDITION_VARIABLE condition;
};

struct os_gate *os_gate_new(void)
{
    struct os_gate *gate = malloc(sizeof *gate);
    if (!gate) return NULL;
    InitializeSRWLock(&gate->lock);
    InitializeConditionVariable(&gate->condition);
    return gate;
}

void os_gate_free(struct os_gate *gate) { free(gate); }
void os_gate_lock(struct os_gate *gate) { AcquireSRWLockExclusive(&gate->lock); }
void os_gate_unlock(struct os_gate *gate) { ReleaseSRWLockExclusive(&gate->lock); }
void os_gate_wait(struct os_gate *gate)
{
    SleepConditionVariableSRW(&gate->condition, &gate->lock, INFINITE, 0);
}
void os_gate_wake(struct os_gate *gate) { WakeAllConditionVariable(&gate->condition); }

/* ---- Libraries ----------------------------------------------------------------------------- */

/* Not in the current folder, where anybody may have put one. */
void *os_library_open(const char *name)
{
    return (void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

void *os_library_symbol(void *library, const char *name)
{
    const FARPROC found = GetProcAddress((HMODULE)library, name);
    void *symbol;
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}

void os_library_close(void *library) { FreeLibrary((HMODULE)library); }

/* ---- Memory -------------------------------------------------------------------------------- */

uint64_t os_memory_bytes(void)
{
    MEMORYSTATUSEX status = { .dwLength = sizeof status };
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : UINT64_MAX / 2;
}

/* ---- Files that are read ------------------------------------------------------------------- */

int os_is_folder(const char *path, bool *is_folder)
{
    wchar_t wide[OS_PATH];
    if (!to_wide(path, wide)) return ENOENT;
    const DWORD attributes = GetFileAttributesW(wide);
    if (attributes == INVALID_FILE_ATTRIBUTES) return last_error();
    *is_folder = attributes & FILE_ATTRIBUTE_DIRECTORY;
    return 0;
}

int os_list(const char *folder, void (*each)(void *user, const char *name), void *user)
{
    wchar_t wide[OS_PATH];
    char pattern[OS_PATH], name[4 * MAX_PATH];
    WIN32_FIND_DATAW found;
    const int n = snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (n >= (int)sizeof pattern || !to_wide(pattern, wide)) return ENOENT;
    const HANDLE search = FindFirstFileW(wide, &found);
    if (search == INVALID_HANDLE_VALUE) return last_error();
    do
        if (WideCharToMultiByte(CP_UTF8, 0, found.cFileName, -1, name, sizeof name, NULL, NULL))
            each(user, name);
    while (FindNextFileW(search, &found));
    FindClose(search);
    return 0;
}

int os_input_open(struct os_input *in, const char *path)
{
    wchar_t wide[OS_PATH];
    LARGE_INTEGER bytes;
    bool is_folder;
    int error = os_is_folder(path, &is_folder);
    if (error) return error;
    if (is_folder) return OS_NOT_A_FILE;
    if (!to_wide(path, wide)) return ENOENT;
    const HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return last_error();
    if (GetFileType(file) != FILE_TYPE_DISK)
        error = OS_NOT_A_FILE;
    else if (!GetFileSizeEx(file, &bytes))
        error = last_error();
    if (error) {
        CloseHandle(file);
        return error;
    }
    in->handle = (intptr_t)file;
    in->bytes = bytes.QuadPart;
    return 0;
}

void os_input_close(struct os_input *in) { CloseHandle((HANDLE)in->handle); }

int os_input_read(const struct os_input *in, void *to, size_t bytes, int64_t offset, size_t *n)
{
    const DWORD most = 1 << 30;
    DWORD got = 0;
    OVERLAPPED at = { .Offset = (DWORD)((uint64_t)offset & 0xffffffff),
                      .OffsetHigh = (DWORD)((uint64_t)offset >> 32) };
    *n = 0;
    if (!ReadFile((HANDLE)in->handle, to, bytes < most ? (DWORD)bytes : most, &got, &at))
        return GetLastError() == ERROR_HANDLE_EOF ? 0 : last_error();
    *n = got;
    return 0;
}

int os_input_map(const struct os_input *in, void **map)
{
    *map = NULL;
    const HANDLE mapping = CreateFileMappingW((HANDLE)in->handle, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return last_error();
    *map = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    const int error = *map ? 0 : last_error();
    CloseHandle(mapping); /* the view keeps it */
    return error;
}

void os_unmap(void *map, size_t bytes)
{
    (void)bytes;
    UnmapViewOfFile(map);
}

/* ---- Drafts and signals -------------------------------------------------------------------- */

/* The draft that Control-C, or the end of the console, removes. */
static struct os_draft *volatile unfinished;
static wchar_t unfinished_name[OS_PATH];

/* Runs in a thread of its own; the program ends after it. */
static BOOL WINAPI remove_and_end(DWORD event)
{
    struct os_draft *draft = unfinished;
    (void)event;
    if (draft) {
        CloseHandle((HANDLE)_get_osfhandle(_fileno(draft->out))); /* an open file is not deleted */
        DeleteFileW(unfinished_name);
    }
    return FALSE;
}

/* Finds where the path leads: through links, if there is such a file. */
static int find_target(struct os_draft *draft, const char *path)
{
    static const wchar_t prefix[] = L"\\\\?\\";
    wchar_t wide[OS_PATH], real[OS_PATH];
    const wchar_t *target = wide;
    if (!to_wide(path, wide)) return ENOENT;
    const HANDLE file = CreateFileW(wide, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                    NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file != INVALID_HANDLE_VALUE) {
        const DWORD type = GetFileType(file);
        const DWORD attributes = type == FILE_TYPE_DISK ? GetFileAttributesW(wide) : 0;
        const DWORD n = GetFinalPathNameByHandleW(file, real, OS_PATH, FILE_NAME_NORMALIZED);
        CloseHandle(file);
        if (type != FILE_TYPE_DISK || (attributes & FILE_ATTRIBUTE_DIRECTORY)) return OS_NOT_A_FILE;
        if (attributes & FILE_ATTRIBUTE_READONLY) return EACCES;
        if (n > 0 && n < OS_PATH && (attributes & FILE_ATTRIBUTE_REPARSE_POINT))
            target = wcsncmp(real, prefix, 4) ? real : real + 4;
    }
    return WideCharToMultiByte(CP_UTF8, 0, target, -1, draft->target, OS_PATH, NULL, NULL)
               ? 0
               : ENAMETOOLONG;
}

int os_draft_begin(struct os_draft *draft, const char *path)
{
    enum { TRIES = 100 };
    const int error = find_target(draft, path);
    if (error) return error;
    int fd = -1;
    for (int i = 0; fd < 0; i++) {
        const int n = snprintf(draft->name, sizeof draft->name, "%s.gdn-%lu-%d", draft->target,
                               GetCurrentProcessId(), i);
        if (n < 0 || n >= (int)sizeof draft->name || !to_wide(draft->name, unfinished_name))
            return ENAMETOOLONG;
        fd = _wopen(unfinished_name, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT,
                    _S_IREAD | _S_IWRITE);
        if (fd < 0 && (errno != EEXIST || i == TRIES)) return errno;
    }
    draft->out = _fdopen(fd, "wb");
    if (!draft->out) {
        _close(fd);
        DeleteFileW(unfinished_name);
        return ENOMEM;
    }
    unfinished = draft;
    SetConsoleCtrlHandler(remove_and_end, TRUE);
    return 0;
}

int os_draft_end(struct os_draft *draft)
{
    wchar_t target[OS_PATH];
    bool good = !ferror(draft->out) && !fflush(draft->out) && !_commit(_fileno(draft->out));
    int error = errno;
    unfinished = NULL;
    SetConsoleCtrlHandler(remove_and_end, FALSE);
    if (fclose(draft->out) && good) {
        good = false;
        error = errno;
    }
    const DWORD flags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    if (good && !(to_wide(draft->target, target) && MoveFileExW(unfinished_name, target, flags))) {
        good = false;
        error = last_error();
    }
    if (!good) DeleteFileW(unfinished_name);
    return good ? 0 : error;
}
