/* SPDX-License-Identifier: Apache-2.0 */
/* program.h for Windows, 10 and newer. Paths are UTF-8 here and UTF-16 in the calls. */
#define WIN32_LEAN_AND_MEAN
#include "core/os/program.h"

#include <windows.h>

#include <corecrt_startup.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool to_wide(const char *text, wchar_t wide[GDN_OS_PATH])
{
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, GDN_OS_PATH) > 0;
}

/* Returns memory for the program's life. */
static char *to_utf8(const wchar_t *wide)
{
    const int bytes = WideCharToMultiByte(CP_UTF8, 0, wide, -1, NULL, 0, NULL, NULL);
    char     *text  = malloc((size_t)bytes + 1);
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
char **gdn_os_arguments(int argc, char **argv)
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

bool gdn_os_is_terminal(FILE *stream) { return _isatty(_fileno(stream)); }

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

static CONTEXT             fault_return;
static const char *volatile fault;

static LONG CALLBACK on_fault(EXCEPTION_POINTERS *info)
{
    const char *name = fault_name(info->ExceptionRecord->ExceptionCode);
    if (!name) return EXCEPTION_CONTINUE_SEARCH;
    fault                = name;
    *info->ContextRecord = fault_return;
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* After a fault the program goes on where the context was captured, with the fault's name set. */
const char *gdn_os_catch(void (*run)(void *arg), void *arg)
{
    void *volatile handler = AddVectoredExceptionHandler(1, on_fault);
    fault                  = NULL;
    RtlCaptureContext(&fault_return);
    if (!fault) run(arg);
    RemoveVectoredExceptionHandler(handler);
    return fault;
}

/* ---- Memory -------------------------------------------------------------------------------- */

uint64_t gdn_os_memory_bytes(void)
{
    MEMORYSTATUSEX status = { .dwLength = sizeof status };
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : UINT64_MAX / 2;
}

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

/* ---- Files that are read ------------------------------------------------------------------- */

int gdn_os_is_folder(const char *path, bool *is_folder)
{
    wchar_t wide[GDN_OS_PATH];
    if (!to_wide(path, wide)) return ENOENT;
    const DWORD attributes = GetFileAttributesW(wide);
    if (attributes == INVALID_FILE_ATTRIBUTES) return last_error();
    *is_folder = attributes & FILE_ATTRIBUTE_DIRECTORY;
    return 0;
}

int gdn_os_list(const char *folder, void (*each)(void *user, const char *name), void *user)
{
    wchar_t          wide[GDN_OS_PATH];
    char             pattern[GDN_OS_PATH], name[4 * MAX_PATH];
    WIN32_FIND_DATAW found;
    const int        n = snprintf(pattern, sizeof pattern, "%s/*", folder);
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

int gdn_os_input_open(struct gdn_os_input *in, const char *path)
{
    wchar_t       wide[GDN_OS_PATH];
    LARGE_INTEGER bytes;
    bool          is_folder;
    int           error = gdn_os_is_folder(path, &is_folder);
    if (error) return error;
    if (is_folder) return GDN_OS_NOT_A_FILE;
    if (!to_wide(path, wide)) return ENOENT;
    const HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return last_error();
    if (GetFileType(file) != FILE_TYPE_DISK) error = GDN_OS_NOT_A_FILE;
    else if (!GetFileSizeEx(file, &bytes)) error = last_error();
    if (error) {
        CloseHandle(file);
        return error;
    }
    in->handle = (intptr_t)file;
    in->bytes  = bytes.QuadPart;
    return 0;
}

void gdn_os_input_close(struct gdn_os_input *in) { CloseHandle((HANDLE)in->handle); }

int gdn_os_input_read(const struct gdn_os_input *in, void *to, size_t bytes, int64_t offset,
                      size_t *n)
{
    const DWORD most = 1 << 30;
    DWORD       got  = 0;
    OVERLAPPED  at   = { .Offset     = (DWORD)((uint64_t)offset & 0xffffffff),
                         .OffsetHigh = (DWORD)((uint64_t)offset >> 32) };
    *n               = 0;
    if (!ReadFile((HANDLE)in->handle, to, bytes < most ? (DWORD)bytes : most, &got, &at))
        return GetLastError() == ERROR_HANDLE_EOF ? 0 : last_error();
    *n = got;
    return 0;
}

int gdn_os_input_map(const struct gdn_os_input *in, void **map)
{
    *map                 = NULL;
    const HANDLE mapping = CreateFileMappingW((HANDLE)in->handle, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return last_error();
    *map            = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    const int error = *map ? 0 : last_error();
    CloseHandle(mapping); /* the view keeps it */
    return error;
}

void gdn_os_unmap(void *map, size_t bytes)
{
    (void)bytes;
    UnmapViewOfFile(map);
}

/* ---- Drafts and signals -------------------------------------------------------------------- */

/* The draft that Control-C, or the end of the console, removes. */
static struct gdn_os_draft *volatile unfinished;
static wchar_t unfinished_name[GDN_OS_PATH];

/* Runs in a thread of its own; the program ends after it. */
static BOOL WINAPI remove_and_end(DWORD event)
{
    struct gdn_os_draft *draft = unfinished;
    (void)event;
    if (draft) {
        CloseHandle((HANDLE)_get_osfhandle(_fileno(draft->out))); /* an open file is not deleted */
        DeleteFileW(unfinished_name);
    }
    return FALSE;
}

/* Finds where the path leads: through links, if there is such a file. */
static int find_target(struct gdn_os_draft *draft, const char *path)
{
    static const wchar_t prefix[] = L"\\\\?\\";
    wchar_t              wide[GDN_OS_PATH], real[GDN_OS_PATH];
    const wchar_t       *target = wide;
    if (!to_wide(path, wide)) return ENOENT;
    const HANDLE file = CreateFileW(wide, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                    NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file != INVALID_HANDLE_VALUE) {
        const DWORD type       = GetFileType(file);
        const DWORD attributes = type == FILE_TYPE_DISK ? GetFileAttributesW(wide) : 0;
        const DWORD n = GetFinalPathNameByHandleW(file, real, GDN_OS_PATH, FILE_NAME_NORMALIZED);
        CloseHandle(file);
        if (type != FILE_TYPE_DISK || (attributes & FILE_ATTRIBUTE_DIRECTORY))
            return GDN_OS_NOT_A_FILE;
        if (attributes & FILE_ATTRIBUTE_READONLY) return EACCES;
        if (n > 0 && n < GDN_OS_PATH && (attributes & FILE_ATTRIBUTE_REPARSE_POINT))
            target = wcsncmp(real, prefix, 4) ? real : real + 4;
    }
    return WideCharToMultiByte(CP_UTF8, 0, target, -1, draft->target, GDN_OS_PATH, NULL, NULL)
               ? 0 : ENAMETOOLONG;
}

int gdn_os_draft_begin(struct gdn_os_draft *draft, const char *path)
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

int gdn_os_draft_end(struct gdn_os_draft *draft)
{
    wchar_t target[GDN_OS_PATH];
    bool    good = !ferror(draft->out) && !fflush(draft->out) && !_commit(_fileno(draft->out));
    int     error = errno;
    unfinished    = NULL;
    SetConsoleCtrlHandler(remove_and_end, FALSE);
    if (fclose(draft->out) && good) {
        good  = false;
        error = errno;
    }
    const DWORD flags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    if (good && !(to_wide(draft->target, target) && MoveFileExW(unfinished_name, target, flags))) {
        good  = false;
        error = last_error();
    }
    if (!good) DeleteFileW(unfinished_name);
    return good ? 0 : error;
}
