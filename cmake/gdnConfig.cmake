# SPDX-License-Identifier: Apache-2.0
# find_package(gdn): the targets gdn::gdn (shared) and gdn::static.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/gdnTargets.cmake)
