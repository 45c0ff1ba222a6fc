# kvtl from the tree that this port lies in: as an overlay port it downloads nothing of kvtl.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release) # headers only
set(VCPKG_POLICY_SKIP_PKGCONFIG_CHECK enabled) # share/pkgconfig is right: the only entry of Libs is -pthread

vcpkg_check_features(OUT_FEATURE_OPTIONS _features
    FEATURES
        uring KVTL_WITH_URING
        calibrate KVTL_WITH_CALIBRATE
        tls KVTL_WITH_TLS
)
vcpkg_find_acquire_program(PKGCONFIG)
vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DKVTL_BUILD_TESTS=OFF
        -DKVTL_BUILD_EXAMPLES=OFF
        -DKVTL_BUILD_BENCH=OFF
        "-DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}"
        ${_features}
    MAYBE_UNUSED_VARIABLES
        PKG_CONFIG_EXECUTABLE
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/kvtl)
vcpkg_fixup_pkgconfig()

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
