# SPDX-License-Identifier: Apache-2.0
# What the Python package knows of the library (tools/interface.py), what goes into a wheel, and the
# extension gdn/_native. The extension keeps to Python's stable ABI of 3.9 and takes libgdn's
# functions by their addresses, so it links neither to libpython nor to libgdn. Any Python's header
# will do, also for another processor of 64 bits.

find_program(GDN_PYTHON NAMES python3 python HINTS ${PROJECT_SOURCE_DIR}/build/venv/bin)
mark_as_advanced(GDN_PYTHON)
if(DEFINED Python_EXECUTABLE) # scikit-build-core
    set(GDN_PYTHON ${Python_EXECUTABLE})
endif()
if(GDN_PYTHON)
    set(interface ${PROJECT_BINARY_DIR}/gdn_interface.json ${PROJECT_BINARY_DIR}/__init__.pyi)
    add_custom_command(OUTPUT ${interface} VERBATIM
        COMMAND ${GDN_PYTHON} ${PROJECT_SOURCE_DIR}/tools/interface.py ${PROJECT_BINARY_DIR}
        DEPENDS ${headers} src/calls/ops.def tools/interface.py python/types.pyi.in)
    add_custom_target(gdn_interface ALL DEPENDS ${interface})
    add_dependencies(gdn gdn_interface)
else()
    message(NOTICE "The Python package gets no description of the library: there is no python3.")
endif()

if(SKBUILD)
    set(package gdn)
    # One file under the name that programs ask for; a wheel has no links.
    set(name $<TARGET_FILE_NAME:gdn>)
    if(NOT WIN32)
        set(name $<TARGET_SONAME_FILE_NAME:gdn>)
    endif()
    install(FILES $<TARGET_FILE:gdn> DESTINATION ${package} COMPONENT wheel RENAME ${name})
    install(FILES ${headers} DESTINATION ${package}/include COMPONENT wheel)
    install(FILES ${interface} DESTINATION ${package} COMPONENT wheel)
    if(TARGET gdn_cli)
        install(TARGETS gdn_cli RUNTIME DESTINATION ${package}/bin COMPONENT wheel)
    endif()
endif()
if(WIN32)
    message(NOTICE "The Python extension is not built: it is for Linux and macOS. The package gdn "
        "calls the library through ctypes, which takes longer.")
    return()
endif()

if(GDN_PYTHON)
    execute_process(
        COMMAND ${GDN_PYTHON} -c "import sysconfig; print(sysconfig.get_path('include'))"
        OUTPUT_VARIABLE python_include OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${python_include}/Python.h")
    message(NOTICE "The Python extension is not built: Python.h was not found (python3-dev). "
        "The package gdn then calls the library through ctypes, which takes longer.")
    return()
endif()

set(native python/native/module.c python/native/memory.c python/native/views.c
    python/native/torch_ops.c python/native/torch_pool.c)
set(kind MODULE)
if(APPLE) # a bundle or a library: Python loads both, and zig's linker makes no bundles
    set(kind SHARED)
endif()
add_library(gdn_native ${kind} ${native})
target_include_directories(gdn_native PRIVATE include)
target_include_directories(gdn_native SYSTEM PRIVATE ${python_include})
# Exceptions of torch pass through the kernels of its operators.
target_compile_options(gdn_native PRIVATE -fexceptions)
target_link_libraries(gdn_native PRIVATE ${system_libraries})
set_target_properties(gdn_native PROPERTIES PREFIX "" OUTPUT_NAME _native SUFFIX .abi3.so)
if(APPLE) # whose linker wants to be told that Python has the rest
    target_link_options(gdn_native PRIVATE LINKER:-undefined,dynamic_lookup)
endif()
if(SKBUILD)
    install(TARGETS gdn_native LIBRARY DESTINATION ${package} COMPONENT wheel)
endif()
