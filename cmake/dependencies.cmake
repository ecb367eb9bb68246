# Everything the project links, found once. Package names are Debian's (see tools/packages.txt).
include_guard()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(spdlog REQUIRED)            # libspdlog-dev
find_package(nlohmann_json REQUIRED)     # nlohmann-json3-dev
find_package(yaml-cpp REQUIRED)          # libyaml-cpp-dev
find_package(CLI11 REQUIRED)             # libcli11-dev
find_package(doctest REQUIRED)           # doctest-dev
find_package(prometheus-cpp REQUIRED)    # prometheus-cpp-dev
find_package(Boost 1.81 REQUIRED)        # libboost1.81-dev (Beast, Asio: headers only)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)  # libpcre2-dev
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # libxxhash-dev

# Benchmarks are built where the library is; nothing else needs it.
set(TROUPE_HAVE_BENCHMARK OFF)
if(TROUPE_BENCHMARKS)
  find_package(benchmark QUIET)          # libbenchmark-dev
  set(TROUPE_HAVE_BENCHMARK ${benchmark_FOUND})
  if(NOT benchmark_FOUND)
    message(STATUS "Benchmarks: Google Benchmark not found, building without")
  endif()
endif()

# UCX ships no CMake package in every distribution; headers and libraries suffice.
find_path(UCX_INCLUDE ucp/api/ucp.h REQUIRED)  # libucx-dev
find_library(UCX_UCP ucp REQUIRED)
find_library(UCX_UCS ucs REQUIRED)
add_library(troupe_ucx INTERFACE)
target_include_directories(troupe_ucx SYSTEM INTERFACE ${UCX_INCLUDE})
target_link_libraries(troupe_ucx INTERFACE ${UCX_UCP} ${UCX_UCS})

# CAF 0.17 (libcaf-dev) has no CMake package either.
find_path(CAF_INCLUDE caf/all.hpp REQUIRED HINTS ${TROUPE_CAF_ROOT}/include)
find_library(CAF_CORE caf_core REQUIRED HINTS ${TROUPE_CAF_ROOT}/lib)
find_library(CAF_IO caf_io REQUIRED HINTS ${TROUPE_CAF_ROOT}/lib)
add_library(troupe_caf INTERFACE)
target_include_directories(troupe_caf SYSTEM INTERFACE ${CAF_INCLUDE})
target_link_libraries(troupe_caf INTERFACE ${CAF_IO} ${CAF_CORE} Threads::Threads)
