# SPDX-License-Identifier: Apache-2.0
# The compiler of Python's package ziglang, for GDN_TARGET: x86_64-linux-gnu.2.28, say. It brings
# the headers and the names of symbols of every glibc, so a wheel needs no older than it names, and
# it compiles for other processors. Used by tools/wheel.sh.
set(GDN_TARGET x86_64-linux-gnu.2.28 CACHE STRING "Processor, system and glibc to compile for")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GDN_TARGET)

string(REGEX MATCH "^[^-]+" processor ${GDN_TARGET})
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
if(NOT processor STREQUAL host)
    set(CMAKE_SYSTEM_NAME Linux)
    set(CMAKE_SYSTEM_PROCESSOR ${processor})
endif()

find_program(zig_python NAMES python3 HINTS ${CMAKE_CURRENT_LIST_DIR}/../build/venv/bin)
set(CMAKE_C_COMPILER ${zig_python} -m ziglang cc -target ${GDN_TARGET})
foreach(tool ar ranlib)
    set(script ${CMAKE_BINARY_DIR}/zig-${tool})
    file(WRITE ${script} "#!/bin/sh\nexec '${zig_python}' -m ziglang ${tool} \"$@\"\n")
    file(CHMOD ${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    string(TOUPPER ${tool} name)
    set(CMAKE_${name} ${script})
endforeach()
# No debugging information, and no names but those of the interface.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
