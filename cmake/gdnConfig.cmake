# SPDX-License-Identifier: Apache-2.0
# find_package(gdn): the targets gdn::gdn (shared) and gdn::static.
include(CMakeFindDependencyMacro)
if(NOT WIN32)
    find_dependency(Threads)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/gdnTargets.cmake)
