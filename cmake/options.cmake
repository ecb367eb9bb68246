# Flags that every target of the project gets. Libraries' headers are system headers and exempt.
include_guard()

add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(troupe_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
  # The numeric contract: no contraction the source does not ask for, no fast-math.
  -ffp-contract=off
  -fno-math-errno)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(troupe_options INTERFACE -O2 -g1)
endif()
if(TROUPE_SANITIZE)
  target_compile_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -O1 -g1)
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "undefined")
    target_compile_options(troupe_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
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
