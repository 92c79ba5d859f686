# SPDX-License-Identifier: Apache-2.0
# Device code: one fatbin for each GDN_IMAGE of kernels.def, which images.c embeds. The language
# CUDA is not enabled: it would want a C++ compiler even where there is no nvcc.

# AUTO: most machines with nvcc that build libgdn once have no GPU and never load device code.
function(find_driver)
    unset(driver_failed CACHE)
    if(NOT CMAKE_CROSSCOMPILING)
        try_run(driver_failed driver_compiled ${PROJECT_BINARY_DIR}/images
            ${PROJECT_SOURCE_DIR}/cmake/driver.c LINK_LIBRARIES ${CMAKE_DL_LIBS})
    endif()
    if(NOT driver_compiled OR NOT driver_failed EQUAL 0)
        set(problem "no GPU's driver is here (-DGDN_CUDA=ON compiles it all the same)" PARENT_SCOPE)
    endif()
endfunction()

# A toolkit may be there without the C++ compiler that nvcc preprocesses with, so it is tried.
function(find_working_nvcc)
    find_program(GDN_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin
        PATHS /usr/local/cuda ${PROJECT_SOURCE_DIR}/build/nvcc/nvidia/cu13)
    mark_as_advanced(GDN_NVCC)
    if(NOT GDN_NVCC)
        set(problem "nvcc was not found" PARENT_SCOPE)
        return()
    endif()
    file(WRITE ${PROJECT_BINARY_DIR}/images/try.cu "__global__ void try_it(int *x) { *x = 1; }\n")
    execute_process(COMMAND ${GDN_NVCC} -fatbin -arch=sm_90a -std=c++17 -o try.fatbin try.cu
        WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/images RESULT_VARIABLE failed
        OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
        set(problem "${GDN_NVCC} does not work: ${said}" PARENT_SCOPE)
    endif()
endfunction()

set(images_folder ${PROJECT_BINARY_DIR}/images)
set(problem "")
if(GDN_CUDA STREQUAL OFF)
    set(problem "GDN_CUDA is OFF")
elseif(NOT CMAKE_SYSTEM_NAME STREQUAL Linux)
    set(problem "libgdn uses GPUs on Linux alone")
elseif(GDN_CUDA STREQUAL AUTO AND NOT GDN_IMAGES_FROM)
    find_driver()
endif()
if(problem)
    # It is said below.
elseif(GDN_IMAGES_FROM)
    get_filename_component(images_folder ${GDN_IMAGES_FROM} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
else()
    find_working_nvcc()
endif()
if(problem AND GDN_CUDA STREQUAL ON)
    message(FATAL_ERROR "No device code: ${problem}")
endif()

if(GDN_IMAGES_FROM AND NOT problem)
    file(STRINGS src/cuda/driver/kernels.def images REGEX "^GDN_IMAGE")
    foreach(row ${images})
        string(REGEX REPLACE "GDN_IMAGE\\(([a-z0-9_]+),.*" "\\1" image ${row})
        if(NOT EXISTS ${images_folder}/${image}.fatbin)
            message(FATAL_ERROR "No device code: ${images_folder}/${image}.fatbin is missing")
        endif()
    endforeach()
    set_source_files_properties(src/cuda/driver/images.c PROPERTIES
        COMPILE_DEFINITIONS "GDN_IMAGES=\"${images_folder}\"")
elseif(problem)
    message(NOTICE "No device code: ${problem}. The library computes on the CPU alone.")
else()
    message(NOTICE "Device code: ${GDN_NVCC} compiles it, which takes minutes.")
    # sm_80 with PTX, which newer chips can compile, and Hopper with all it has.
    set(gencode_sm_90a -gencode arch=compute_90a,code=sm_90a)
    set(gencode_all -gencode arch=compute_80,code=[sm_80,compute_80] ${gencode_sm_90a})
    set(row_form "GDN_IMAGE\\(([a-z0-9_]+), ([a-z0-9_]+), [a-z_]+, \"([a-z0-9_/]+)\"\\)")
    file(STRINGS src/cuda/driver/kernels.def images REGEX "^${row_form}")
    # What takes a minute begins first, so that no processor waits for one of these at the end.
    set(long ${images})
    list(FILTER long INCLUDE REGEX "\\((prefill_(bf16|f16|f32)|decode_walk|conv|step),")
    list(REMOVE_ITEM images ${long})
    # No contraction: where a fused multiply-add is meant, it is written.
    foreach(row ${long} ${images})
        string(REGEX REPLACE "${row_form}" "\\1;\\2;src/cuda/\\3.cu" row ${row})
        list(GET row 0 image)
        list(GET row 1 chips)
        list(GET row 2 source)
        add_custom_command(OUTPUT ${images_folder}/${image}.fatbin
            COMMAND ${PROJECT_SOURCE_DIR}/tools/image.sh ${GDN_NVCC} -fatbin -std=c++17 -O3
                -fmad=false ${gencode_${chips}} -I${PROJECT_SOURCE_DIR}/include
                -I${PROJECT_SOURCE_DIR}/src
                -MD -MF ${images_folder}/${image}.d -MT ${images_folder}/${image}.fatbin
                -o ${images_folder}/${image}.fatbin
                ${PROJECT_SOURCE_DIR}/${source}
            DEPFILE ${images_folder}/${image}.d
            DEPENDS ${source} tools/image.sh
            COMMENT "Device code ${image}" VERBATIM)
        set_property(SOURCE src/cuda/driver/images.c APPEND PROPERTY OBJECT_DEPENDS
            ${images_folder}/${image}.fatbin)
    endforeach()
    set_source_files_properties(src/cuda/driver/images.c PROPERTIES
        COMPILE_DEFINITIONS "GDN_IMAGES=\"${images_folder}\"")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/cuda/driver/kernels.def)
