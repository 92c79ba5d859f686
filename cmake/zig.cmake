# SPDX-License-Identifier: Apache-2.0
# The compiler of Python's package ziglang, for GDN_TARGET: x86_64-linux-gnu.2.28,
# x86_64-windows-gnu or aarch64-macos.11.0, say. It brings the headers and libraries of these
# systems, and the names of symbols of every glibc, so what it builds needs no newer one than the
# target says. Programs for Windows run under wine. tools/wheel.sh and stage systems of tools/ci.sh
# use it.
set(GDN_TARGET x86_64-linux-gnu.2.28 CACHE STRING "Processor, system, version to compile for")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GDN_TARGET)

string(REGEX MATCH "^([^-]+)-([a-z]+)" found ${GDN_TARGET})
set(processor ${CMAKE_MATCH_1})
set(systems_linux Linux)
set(systems_windows Windows)
set(systems_macos Darwin)
set(system ${systems_${CMAKE_MATCH_2}})
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
if(NOT "${processor} ${system}" STREQUAL "${host} ${CMAKE_HOST_SYSTEM_NAME}")
    set(CMAKE_SYSTEM_NAME ${system})
    set(CMAKE_SYSTEM_PROCESSOR ${processor})
endif()
if(system STREQUAL Windows)
    find_program(WINE NAMES wine64 wine)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${WINE})
elseif(system STREQUAL Darwin)
    set(CMAKE_OSX_SYSROOT "") # zig has its own
    set(CMAKE_INSTALL_NAME_TOOL true)
    set(CMAKE_INSTALL_NAME_DIR @rpath)
    set(CMAKE_BUILD_WITH_INSTALL_NAME_DIR ON)
endif()

# The program itself, since Python would start anew for each file.
find_program(zig_python NAMES python3 HINTS ${CMAKE_CURRENT_LIST_DIR}/../build/venv/bin)
execute_process(COMMAND ${zig_python} -c "import ziglang; print(*ziglang.__path__)"
    OUTPUT_VARIABLE zig_folder OUTPUT_STRIP_TRAILING_WHITESPACE)
set(zig ${zig_folder}/zig)
set(CMAKE_C_COMPILER ${zig} cc -target ${GDN_TARGET})
foreach(tool ar ranlib)
    set(script ${CMAKE_BINARY_DIR}/zig-${tool})
    file(WRITE ${script} "#!/bin/sh\nexec '${zig}' ${tool} \"$@\"\n")
    file(CHMOD ${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    string(TOUPPER ${tool} name)
    set(CMAKE_${name} ${script})
endforeach()
# No debugging information, and no names but those of the interface.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
