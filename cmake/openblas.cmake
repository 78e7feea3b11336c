# OpenBLAS, of any flavour: matrix products and, with the LAPACK that it contains, eigenvectors. Its own CMake files differ
# between distributions, so that it is looked for by name.
find_path(THINWIRE_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas)
find_library(THINWIRE_OPENBLAS_LIBRARY openblas)
if(NOT THINWIRE_CBLAS_INCLUDE OR NOT THINWIRE_OPENBLAS_LIBRARY)
  message(SEND_ERROR "OpenBLAS is missing (Debian, Ubuntu: libopenblas-dev; Fedora: openblas-devel; conda: openblas)")
  return()
endif()
if(NOT TARGET thinwire::openblas)
  add_library(thinwire::openblas UNKNOWN IMPORTED GLOBAL)
  set_target_properties(thinwire::openblas PROPERTIES IMPORTED_LOCATION ${THINWIRE_OPENBLAS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${THINWIRE_CBLAS_INCLUDE})
  # All names of PyPI's scipy-openblas32, which wheels are linked with, have a prefix: it lives beside any other OpenBLAS.
  if(THINWIRE_OPENBLAS_LIBRARY MATCHES "scipy_openblas")
    foreach(name IN ITEMS cblas_ssyrk dsyev_ openblas_get_config openblas_get_parallel openblas_set_num_threads ssyevd_)
      set_property(TARGET thinwire::openblas APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS ${name}=scipy_${name})
    endforeach()
  endif()
endif()
