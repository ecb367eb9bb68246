# `header_check` compiles every header of the project alone, without a precompiled header, so that each
# includes what it uses. Not part of the default build; `./check --full` runs it.
include_guard()

function(troupe_header_check)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
       kernels/*.hpp runtime/*.hpp actors/*.hpp apps/*.hpp)
  set(sources "")
  foreach(header IN LISTS headers)
    set(source ${CMAKE_BINARY_DIR}/header_check/${header}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"  // IWYU pragma: keep\n")
    list(APPEND sources ${source})
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(header_check OBJECT EXCLUDE_FROM_ALL ${sources})
  set_target_properties(header_check PROPERTIES EXPORT_COMPILE_COMMANDS OFF)
  target_compile_options(header_check PRIVATE -O0)
  target_link_libraries(header_check PRIVATE troupe_cluster troupe_http troupe_ucx CLI11::CLI11 prometheus-cpp::core)
endfunction()
