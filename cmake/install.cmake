# Install rules: the headers, a CMake package and pkg-config files. Nothing depends on the architecture, so all of it
# lies below include/ and share/. Everything is in component `kvtl`, apart from what bash completes in component
# `kvtl_completions` (completion.cmake) and programs that others may install.
#
# kvtl::uring, kvtl::calibrate and kvtl::tls have export sets of their own: where liburing, Eigen or OpenSSL is missing on
# the user's machine the package still loads and offers kvtl::kvtl alone.
set(_kvtl_cmake_dir "${CMAKE_INSTALL_DATADIR}/cmake/kvtl")
set(_kvtl_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")

install(TARGETS kvtl EXPORT kvtl-targets FILE_SET HEADERS COMPONENT kvtl)
install(EXPORT kvtl-targets NAMESPACE kvtl:: DESTINATION "${_kvtl_cmake_dir}" COMPONENT kvtl)
if(TARGET kvtl_uring)
    install(TARGETS kvtl_uring EXPORT kvtl-uring-targets FILE_SET HEADERS COMPONENT kvtl)
    install(EXPORT kvtl-uring-targets NAMESPACE kvtl:: DESTINATION "${_kvtl_cmake_dir}" COMPONENT kvtl)
endif()
if(TARGET kvtl_tls)
    install(TARGETS kvtl_tls EXPORT kvtl-tls-targets FILE_SET HEADERS COMPONENT kvtl)
    install(EXPORT kvtl-tls-targets NAMESPACE kvtl:: DESTINATION "${_kvtl_cmake_dir}" COMPONENT kvtl)
endif()
if(TARGET kvtl_calibrate_headers)
    install(TARGETS kvtl_calibrate_headers EXPORT kvtl-calibrate-targets FILE_SET HEADERS COMPONENT kvtl)
    install(EXPORT kvtl-calibrate-targets NAMESPACE kvtl:: DESTINATION "${_kvtl_cmake_dir}" COMPONENT kvtl)
endif()

# kvtl::compiled is compiled with its user's flags, so what is installed is its source.
install(FILES "${PROJECT_SOURCE_DIR}/src/kvtl.cpp" DESTINATION "${CMAKE_INSTALL_DATADIR}/kvtl" COMPONENT kvtl)

set(KVTL_SOURCE_DIR "${CMAKE_INSTALL_DATADIR}/kvtl")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/kvtl-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/kvtl-config.cmake"
                              PATH_VARS KVTL_SOURCE_DIR
                              INSTALL_DESTINATION "${_kvtl_cmake_dir}"
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# While the major version is 0 a minor version may break users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvtl-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/kvtl-config.cmake" "${PROJECT_BINARY_DIR}/kvtl-config-version.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/kvtl-xsimd-links.cmake"
        DESTINATION "${_kvtl_cmake_dir}" COMPONENT kvtl)

# The headers are found relative to kvtl.pc itself: an installed tree may be moved.
file(RELATIVE_PATH _kvtl_pc_to_include "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
configure_file("${PROJECT_SOURCE_DIR}/kvtl.pc.in" "${PROJECT_BINARY_DIR}/kvtl.pc" @ONLY)
file(RELATIVE_PATH _kvtl_pc_to_source "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig" "${CMAKE_INSTALL_FULL_DATADIR}/kvtl")
configure_file("${PROJECT_SOURCE_DIR}/kvtl-compiled.pc.in" "${PROJECT_BINARY_DIR}/kvtl-compiled.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvtl.pc" "${PROJECT_BINARY_DIR}/kvtl-compiled.pc" DESTINATION "${_kvtl_pc_dir}" COMPONENT kvtl)
