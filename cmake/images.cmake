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

# Images are compiled for these architectures, as CMake names them: 80 is code for sm_80 and PTX,
# 100-real code alone, 80-virtual PTX alone; native is code for the GPUs of this machine. All code
# but Hopper's comes from one PTX, that of compute_80, so a chip runs the same kernels with code of
# its own and without. "once" compiles each image once, which takes half of the time and shows
# whether it compiles: Hopper's own for sm_90a, the others for sm_80, twins as PTX alone, not
# optimised. It is not for a GPU: on Hopper kernels that overlap want code of compute_90a.
set(GDN_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CACHE STRING
    "Device code: architectures; empty or all: 80;90a-real;100-real;120-real; native; once")
function(read_architectures)
    set(wanted ${GDN_CUDA_ARCHITECTURES})
    if(NOT wanted OR wanted STREQUAL all)
        set(wanted 80 90a-real 100-real 120-real)
    endif()
    if(wanted STREQUAL once)
        set(wanted 80 90a-real)
    endif()
    if(wanted STREQUAL native)
        execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
            RESULT_VARIABLE failed OUTPUT_VARIABLE wanted ERROR_QUIET)
        if(failed)
            message(FATAL_ERROR "GDN_CUDA_ARCHITECTURES: native, but nvidia-smi finds no GPU")
        endif()
        string(REGEX MATCHALL "[0-9]+[.][0-9]+" wanted "${wanted}")
        list(TRANSFORM wanted REPLACE "[.](.*)" "\\1-real")
    endif()
    foreach(one ${wanted})
        if(NOT one MATCHES "^([0-9]+)[af]?(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS 80)
            message(FATAL_ERROR "GDN_CUDA_ARCHITECTURES: \"${one}\", wanted all, native, or "
                "80 or more with -real or -virtual or neither")
        elseif(NOT CMAKE_MATCH_2 STREQUAL -real)
            list(APPEND portable compute_80)
        endif()
        if(CMAKE_MATCH_2 STREQUAL -virtual)
            continue()
        elseif(CMAKE_MATCH_1 EQUAL 90)
            set(hopper -gencode arch=compute_90a,code=sm_90a)
            list(APPEND chips 90a)
        else()
            list(APPEND portable sm_${CMAKE_MATCH_1})
            list(APPEND chips ${CMAKE_MATCH_1})
        endif()
    endforeach()
    if(portable)
        list(REMOVE_DUPLICATES portable)
        list(REMOVE_DUPLICATES chips)
        list(JOIN portable , code)
        set(all -gencode "arch=compute_80,code=[${code}]")
    endif()
    if(compute_80 IN_LIST portable)
        list(APPEND chips ptx)
    endif()
    list(JOIN chips " " chips)
    set(gencode_sm_90a ${hopper} PARENT_SCOPE)
    if(NOT GDN_CUDA_ARCHITECTURES STREQUAL once)
        list(APPEND all ${hopper})
    endif()
    set(gencode_all ${all} PARENT_SCOPE)
    set(chips ${chips} PARENT_SCOPE)
endfunction()

set(row_form "GDN_IMAGE\\(([a-z0-9_]+), ([a-z0-9_]+), \"([a-z0-9_/]+)\"\\)")
file(STRINGS src/cuda/driver/kernels.def images REGEX "^${row_form}")
if(problem)
    message(NOTICE "No device code: ${problem}. The library computes on the CPU alone.")
    set(images)
elseif(GDN_IMAGES_FROM)
    if(NOT EXISTS ${images_folder}/chips)
        message(FATAL_ERROR "No device code: ${images_folder}/chips is missing")
    endif()
    file(STRINGS ${images_folder}/chips chips)
else()
    message(NOTICE "Device code: ${GDN_NVCC} compiles it, which takes minutes.")
    read_architectures()
    file(WRITE ${images_folder}/chips "${chips}\n")
endif()
if(images AND NOT chips MATCHES 90a)
    list(FILTER images EXCLUDE REGEX ", sm_90a,")
endif()

# Twins have the source of an image for bf16, for k-last states or for heads of 128.
set(twins "_f16|_kv,|_64,")

# What takes a minute begins first, so that no processor waits for one of these at the end.
set(long ${images})
list(FILTER long INCLUDE REGEX
    "\\((prefill_general_.*|decode_walk_..|conv_(tile|walk).*|step_general_..|backward.*),.*,")
list(REMOVE_ITEM images ${long})
# No contraction: where a fused multiply-add is meant, it is written.
foreach(row ${long} ${images})
    string(REGEX REPLACE "${row_form}" "\\1;\\2;src/cuda/\\3.cu" row ${row})
    list(GET row 0 image)
    list(GET row 1 chip)
    list(GET row 2 source)
    set(fatbin ${images_folder}/${image}.fatbin)
    set(gencode ${gencode_${chip}})
    set(effort)
    if(GDN_CUDA_ARCHITECTURES STREQUAL once AND "${image}," MATCHES "${twins}")
        string(REGEX REPLACE "arch=(compute_[0-9a]+),code=.*" "arch=\\1,code=\\1" gencode
            "${gencode}")
        set(effort -Xcicc -O0)
    endif()
    if(image STREQUAL yardstick AND NOT "${gencode}" MATCHES sm_90a)
        list(APPEND gencode ${gencode_sm_90a}) # by its code a context finds what the build has
    endif()
    if(GDN_IMAGES_FROM)
        if(NOT EXISTS ${fatbin})
            message(FATAL_ERROR "No device code: ${fatbin} is missing")
        endif()
        set_property(SOURCE src/cuda/driver/images.c APPEND PROPERTY OBJECT_DEPENDS ${fatbin})
        continue()
    endif()
    set(strict $<$<BOOL:${GDN_WERROR}>:--strict>)
    add_custom_command(OUTPUT ${fatbin}
        COMMAND ${PROJECT_SOURCE_DIR}/tools/image.sh ${strict} ${image} ${GDN_NVCC} -fatbin
            -std=c++17 -O3 -fmad=false ${effort} ${gencode} --compress-mode=size
            -DGDN_IMAGE_${image}=GDN_THIS_IMAGE
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
            -MD -MF ${images_folder}/${image}.d -MT ${fatbin} -o ${fatbin}
            ${PROJECT_SOURCE_DIR}/${source}
        DEPFILE ${images_folder}/${image}.d
        DEPENDS ${source} tools/image.sh src/cuda/driver/spills.txt
        COMMENT "Device code ${image}" VERBATIM COMMAND_EXPAND_LISTS)
    set_property(SOURCE src/cuda/driver/images.c APPEND PROPERTY OBJECT_DEPENDS ${fatbin})
endforeach()
if(NOT problem)
    set(defined "GDN_IMAGES=\"${images_folder}\"" "GDN_IMAGE_CHIPS=\"${chips}\"")
    if(NOT chips MATCHES 90a)
        list(APPEND defined GDN_NO_SM_90A)
    endif()
    set_source_files_properties(src/cuda/driver/images.c PROPERTIES
        COMPILE_DEFINITIONS "${defined}")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/cuda/driver/kernels.def)
