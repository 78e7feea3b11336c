option(THINWIRE_BUILD_TOOL "Build the command-line tool" ON)
option(THINWIRE_BUILD_TESTS "Build the C++ tests" OFF)
option(THINWIRE_BUILD_EXAMPLES "Build the C++ examples" OFF)
option(THINWIRE_BUILD_PYTHON "Build the Python module" OFF)
set(THINWIRE_WITH_MPI AUTO CACHE STRING "Workers that are MPI processes: ON, OFF, or AUTO, where MPI is found")
set(THINWIRE_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize=; empty for none")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(THINWIRE_CCACHE ccache)
if(THINWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${THINWIRE_CCACHE})
endif()

# -ffp-contract=off: a fused multiply-add rounds once where a multiply and an add round twice, so workers whose
# processors differ would decode different bits.
add_library(thinwire_compile_options INTERFACE)
target_compile_options(thinwire_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off)
if(THINWIRE_SANITIZE)
  target_compile_definitions(thinwire_compile_options INTERFACE _GLIBCXX_ASSERTIONS)  # spans check their bounds
  # A target's property UNCHECKED takes checks back.
  target_compile_options(thinwire_compile_options INTERFACE
    -fsanitize=${THINWIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all $<TARGET_PROPERTY:UNCHECKED>)
  target_link_options(thinwire_compile_options INTERFACE -fsanitize=${THINWIRE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND THINWIRE_SANITIZE MATCHES address)
    # GCC's runtime as a shared library takes a fifth of the tests' time for looking up its own variables of threads.
    target_link_options(thinwire_compile_options INTERFACE -static-libasan -static-libubsan)
  endif()
endif()

# thinwire_room(NAME SOURCES ... [PUBLIC targets] [PRIVATE targets]): one folder of src/ as a static library
function(thinwire_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(thinwire_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(thinwire_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(thinwire_${name} PUBLIC ${ROOM_PUBLIC}
    PRIVATE ${ROOM_PRIVATE} $<BUILD_INTERFACE:thinwire_compile_options>)
endfunction()

if(THINWIRE_WITH_MPI STREQUAL "AUTO")
  find_package(MPI QUIET COMPONENTS CXX)
elseif(THINWIRE_WITH_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
set(THINWIRE_MPI ${MPI_CXX_FOUND})
if(NOT THINWIRE_MPI)
  set(THINWIRE_MPI OFF)
endif()
message(STATUS "MPI: ${THINWIRE_MPI}")
