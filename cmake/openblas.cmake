# OpenBLAS, of any flavour: matrix products and, with the LAPACK that it contains, eigenvectors. Its own CMake files differ
# between distributions, so that it is looked for by name.
find_path(THINWIRE_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas)
find_library(THINWIRE_OPENBLAS_LIBRARY openblas)
if(NOT THINWIRE_CBLAS_INCLUDE OR NOT THINWIRE_OPENBLAS_LIBRARY)
  message(FATAL_ERROR "OpenBLAS is missing (Debian: libopenblas-dev; Fedora: openblas-devel; conda: openblas)")
endif()
if(NOT TARGET thinwire::openblas)
  add_library(thinwire::openblas UNKNOWN IMPORTED GLOBAL)
  set_target_properties(thinwire::openblas PROPERTIES IMPORTED_LOCATION ${THINWIRE_OPENBLAS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${THINWIRE_CBLAS_INCLUDE})
endif()
