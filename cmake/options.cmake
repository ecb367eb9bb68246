# Flags that every target of the project gets. Libraries' headers are system headers and exempt.
include_guard()

add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR})

set(cxx_flags
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
  # The numeric contract: no contraction the source does not ask for, no fast-math.
  -ffp-contract=off
  -fno-math-errno
  # Messages and debug information name files from the repository's root, wherever that is.
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  list(APPEND cxx_flags -O2 -g1)
endif()
if(TROUPE_SANITIZE)
  list(APPEND cxx_flags -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -O1 -g1)
  if(TROUPE_SANITIZE MATCHES "undefined")
    list(APPEND cxx_flags -fno-sanitize-recover=undefined)
  endif()
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
endif()
target_compile_options(troupe_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>")

# ccache needs to be told that a precompiled header's macros and times do not matter. With the base
# directory and the mapped paths above it also serves a clone in another directory.
find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${TROUPE_CCACHE})
endif()

# A static library of what the directory holds.
function(troupe_library name)
  if(ARGN)
    add_library(${name} STATIC ${ARGN})
    target_link_libraries(${name} PUBLIC troupe_options)
    set(TROUPE_LINK PUBLIC PARENT_SCOPE)
  else()
    add_library(${name} INTERFACE)
    set(TROUPE_LINK INTERFACE PARENT_SCOPE)
  endif()
endfunction()

# Precompiles CAF's headers for a library: they take two seconds of every file that includes them.
# A file still includes what it uses; `header_check` and clang-tidy run without the precompiled header.
function(troupe_precompile_caf name)
  get_target_property(type ${name} TYPE)
  if(NOT TROUPE_PRECOMPILE OR type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  target_precompile_headers(${name} PRIVATE <caf/all.hpp> <caf/io/all.hpp>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()
