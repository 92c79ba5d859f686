# SPDX-License-Identifier: Apache-2.0
# What leaves the shared library: the names in src/core/gdn.map, as each system's linker wants them.
set(map ${PROJECT_SOURCE_DIR}/src/core/gdn.map)
set_property(TARGET gdn APPEND PROPERTY LINK_DEPENDS ${map})
if(WIN32)
    file(STRINGS ${map} names REGEX "^    gdn_.*;$")
    list(TRANSFORM names REPLACE ";" "")
    list(JOIN names "\n" names)
    file(CONFIGURE OUTPUT gdn.def CONTENT "EXPORTS\n@names@\n" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${map})
    target_sources(gdn PRIVATE ${PROJECT_BINARY_DIR}/gdn.def)
    set_target_properties(gdn PROPERTIES PREFIX "") # gdn.dll
elseif(NOT APPLE) # where the visibility of functions does it alone
    target_link_options(gdn PRIVATE LINKER:--version-script=${map})
    if(NOT GDN_SANITIZE) # clang leaves the sanitizers' symbols to the program
        target_link_options(gdn PRIVATE LINKER:--no-undefined)
    endif()
endif()
