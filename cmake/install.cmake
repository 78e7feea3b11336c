# Installs the libraries, the public headers and the tool, so that other projects say find_package(thinwire).
include(CMakePackageConfigHelpers)

foreach(room IN LISTS THINWIRE_ROOMS)
  set_target_properties(thinwire_${room} PROPERTIES EXPORT_NAME ${room})
endforeach()
set_target_properties(thinwire_all PROPERTIES EXPORT_NAME thinwire)
# The public headers are C++20, which the users of an installed package have to be told.
target_compile_features(thinwire_all INTERFACE cxx_std_20)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
install(TARGETS thinwire_all ${rooms} EXPORT thinwireTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT thinwireTargets NAMESPACE thinwire:: DESTINATION ${config_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/thinwire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# Its users need MPI, and so have to ask for it: find_package(thinwire COMPONENTS mpi).
if(THINWIRE_MPI)
  set_target_properties(thinwire_mpi PROPERTIES EXPORT_NAME mpi)
  install(TARGETS thinwire_mpi EXPORT thinwireMpiTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT thinwireMpiTargets NAMESPACE thinwire:: DESTINATION ${config_dir})
endif()

configure_package_config_file(cmake/thinwireConfig.cmake.in ${PROJECT_BINARY_DIR}/thinwireConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/thinwireConfig.cmake ${PROJECT_BINARY_DIR}/thinwireConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/openblas.cmake DESTINATION ${config_dir})

if(TARGET thinwire_tool)
  install(TARGETS thinwire_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
