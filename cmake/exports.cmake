# SPDX-License-Identifier: Apache-2.0
# What leaves the shared library: the functions that the headers declare with GDN_API, as each
# system's linker wants them.
set(exports "")
foreach(header IN LISTS headers)
    file(STRINGS ${header} lines REGEX "^GDN_API ")
    foreach(line IN LISTS lines)
        string(REGEX REPLACE "^GDN_API [^(]*[ *](gdn_[a-z0-9_]+)\\(.*" "\\1" name "${line}")
        list(APPEND exports ${name})
    endforeach()
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
if(WIN32)
    list(JOIN exports "\n" names)
    file(CONFIGURE OUTPUT gdn.def CONTENT "EXPORTS\n@names@\n" @ONLY)
    target_sources(gdn PRIVATE ${PROJECT_BINARY_DIR}/gdn.def)
    set_target_properties(gdn PROPERTIES PREFIX "") # gdn.dll
elseif(NOT APPLE) # where the visibility of functions does it alone
    list(JOIN exports ";\n    " names)
    file(CONFIGURE OUTPUT gdn.map CONTENT
        "GDN_0 {\nglobal:\n    @names@;\nlocal:\n    *;\n};\n" @ONLY)
    set_property(TARGET gdn APPEND PROPERTY LINK_DEPENDS ${PROJECT_BINARY_DIR}/gdn.map)
    target_link_options(gdn PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/gdn.map)
    if(NOT GDN_SANITIZE) # clang leaves the sanitizers' symbols to the program
        target_link_options(gdn PRIVATE LINKER:--no-undefined)
    endif()
endif()
