"""kvtl for Conan 2, from the tree that this recipe lies in: conan create packaging/conan

SPDX-License-Identifier: MIT
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class KvtlConan(ConanFile):
    name = "kvtl"
    description = "Composable key-value cache management on flash for LLM inference engines"
    license = "MIT"
    topics = ("llm", "kv-cache", "flash", "attention", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_uring": [True, False], "with_calibrate": [True, False], "with_tls": [True, False]}
    default_options = {"with_uring": True, "with_calibrate": False, "with_tls": False}
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "../../include/kvtl/version.hpp"))
        self.version = re.search(r'KVTL_VERSION_STRING "([0-9.]+)"', header)[1]

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "../..")
        for pattern in ("LICENSE", "include/kvtl/*.hpp"):
            copy(self, pattern, src=root, dst=self.export_sources_folder)

    def requirements(self):
        self.requires("xsimd/[>=8.1 <15]")
        if self.options.with_uring:
            self.requires("liburing/[>=2.3]")
        if self.options.with_calibrate:
            self.requires("eigen/[>=3.4 <4]")
        if self.options.with_tls:
            self.requires("openssl/[>=3 <4]")

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"kvtl runs on Linux; os is {self.settings.os}")
        if self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration(f"kvtl runs on x86_64 and armv8; arch is {self.settings.arch}")

    def package_id(self):
        self.info.clear()  # headers are the same for every setting

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        copy(self, "include/kvtl/*.hpp", src=self.source_folder, dst=self.package_folder)

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        # The target of the whole package links every component. Its default name is that of the component `headers`.
        self.cpp_info.set_property("cmake_target_name", "kvtl::all")
        headers = self.cpp_info.components["headers"]
        headers.set_property("cmake_target_name", "kvtl::kvtl")
        headers.requires = ["xsimd::xsimd"]
        headers.system_libs = ["pthread"]
        if self.options.with_uring:
            uring = self.cpp_info.components["uring"]
            uring.set_property("cmake_target_name", "kvtl::uring")
            uring.requires = ["headers", "liburing::liburing"]
            uring.defines = ["KVTL_HAS_URING=1"]
        if self.options.with_calibrate:
            calibrate = self.cpp_info.components["calibrate"]
            calibrate.set_property("cmake_target_name", "kvtl::calibrate")
            calibrate.requires = ["headers", "eigen::eigen"]
            calibrate.defines = ["KVTL_HAS_CALIBRATE=1"]
        if self.options.with_tls:
            tls = self.cpp_info.components["tls"]
            tls.set_property("cmake_target_name", "kvtl::tls")
            tls.requires = ["headers", "openssl::openssl"]
            tls.defines = ["KVTL_HAS_TLS=1"]
        for component in self.cpp_info.components.values():
            component.bindirs = []
            component.libdirs = []
