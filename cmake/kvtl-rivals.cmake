# Libraries that kvtl-kernels --rivals compares with: kvtl_rivals links those that are found and defines KVTL_RIVAL_<NAME> for
# each. None is needed for anything else, and kvtl-kernels names those that are missing.
#
#   OpenBLAS, hnswlib, faiss   as Debian has them (libopenblas-dev, libhnswlib-dev, libfaiss-dev)
#   simsimd                    KVTL_SIMSIMD_INCLUDE: the folder that has simsimd/simsimd.h, such as `include` of the npm package
#   ggml                       the llama.cpp that kvtl-llama was built with
#   ik_llama.cpp               KVTL_IK_LLAMA: its source tree (github.com/ikawrakow/ik_llama.cpp). Of it the flash attention for
#                              heads of 64 and 128 is built, in a library of its own (three minutes of CPU)
add_library(kvtl_rivals INTERFACE)
set(_rivals "")
macro(_kvtl_rival name)
    target_compile_definitions(kvtl_rivals INTERFACE KVTL_RIVAL_${name}=1)
    list(APPEND _rivals ${name})
endmacro()

find_path(KVTL_OPENBLAS_INCLUDE openblas_config.h PATH_SUFFIXES openblas openblas-pthread x86_64-linux-gnu/openblas-pthread
                                                                aarch64-linux-gnu/openblas-pthread)
find_library(KVTL_OPENBLAS_LIBRARY openblas)
mark_as_advanced(KVTL_OPENBLAS_INCLUDE KVTL_OPENBLAS_LIBRARY)
if(KVTL_OPENBLAS_INCLUDE AND KVTL_OPENBLAS_LIBRARY)
    target_include_directories(kvtl_rivals SYSTEM INTERFACE "${KVTL_OPENBLAS_INCLUDE}")
    target_link_libraries(kvtl_rivals INTERFACE "${KVTL_OPENBLAS_LIBRARY}")
    _kvtl_rival(OPENBLAS)
endif()

find_path(KVTL_HNSWLIB_INCLUDE hnswlib/hnswlib.h)
mark_as_advanced(KVTL_HNSWLIB_INCLUDE)
if(KVTL_HNSWLIB_INCLUDE)
    target_include_directories(kvtl_rivals SYSTEM INTERFACE "${KVTL_HNSWLIB_INCLUDE}")
    _kvtl_rival(HNSWLIB)
endif()

find_path(KVTL_FAISS_INCLUDE faiss/IndexFlat.h)
find_library(KVTL_FAISS_LIBRARY faiss)
mark_as_advanced(KVTL_FAISS_INCLUDE KVTL_FAISS_LIBRARY)
find_package(OpenMP QUIET COMPONENTS CXX) # faiss is built with it
if(KVTL_FAISS_INCLUDE AND KVTL_FAISS_LIBRARY AND OpenMP_CXX_FOUND AND KVTL_OPENBLAS_LIBRARY)
    target_include_directories(kvtl_rivals SYSTEM INTERFACE "${KVTL_FAISS_INCLUDE}")
    target_link_libraries(kvtl_rivals INTERFACE "${KVTL_FAISS_LIBRARY}" "${KVTL_OPENBLAS_LIBRARY}" OpenMP::OpenMP_CXX)
    _kvtl_rival(FAISS)
endif()

find_path(KVTL_SIMSIMD_INCLUDE simsimd/simsimd.h PATHS "${PROJECT_SOURCE_DIR}/build/simsimd/include")
mark_as_advanced(KVTL_SIMSIMD_INCLUDE)
if(KVTL_SIMSIMD_INCLUDE)
    target_include_directories(kvtl_rivals SYSTEM INTERFACE "${KVTL_SIMSIMD_INCLUDE}")
    # 16-bit numbers as their bits: types of the compiler would need other flags, and a warning says so.
    target_compile_definitions(kvtl_rivals INTERFACE SIMSIMD_NATIVE_F16=0 SIMSIMD_NATIVE_BF16=0)
    _kvtl_rival(SIMSIMD)
endif()

if(TARGET kvtl_llama_cpp)
    target_link_libraries(kvtl_rivals INTERFACE kvtl_llama_cpp)
    _kvtl_rival(GGML)
endif()

set(KVTL_IK_LLAMA "" CACHE PATH "Source tree of ik_llama.cpp, for kvtl-kernels --rivals")
if(KVTL_IK_LLAMA)
    set(_ik "${KVTL_IK_LLAMA}/ggml/src")
    if(NOT EXISTS "${_ik}/iqk/fa/iqk_fa_128_128.cpp")
        message(FATAL_ERROR "KVTL_IK_LLAMA is ${KVTL_IK_LLAMA}; valid: a source tree of ik_llama.cpp, with "
                            "ggml/src/iqk/fa/iqk_fa_128_128.cpp")
    endif()
    add_library(kvtl_ik_llama SHARED "${PROJECT_SOURCE_DIR}/bench/rival_ik.cpp" "${_ik}/iqk/fa/iqk_fa_64_64.cpp"
                "${_ik}/iqk/fa/iqk_fa_128_128.cpp" "${_ik}/iqk/iqk_gemm_floats.cpp"
                "${_ik}/iqk/iqk_gemm_legacy_quants.cpp" "${_ik}/iqk/iqk_quantize.cpp")
    target_include_directories(kvtl_ik_llama PRIVATE "${_ik}" "${KVTL_IK_LLAMA}/ggml/include")
    target_compile_definitions(kvtl_ik_llama PRIVATE GGML_USE_IQK_MULMAT GGML_IQK_FLASH_ATTENTION)
    # Its names are also those of llama.cpp's ggml. What is not reached from the kernel is left out.
    file(WRITE "${PROJECT_BINARY_DIR}/ik_llama.map"
         "{ global: extern \"C++\" { kernels::ik_attention::*; }; local: *; };\n")
    target_compile_options(kvtl_ik_llama PRIVATE -O3 -march=native -w -fvisibility=hidden -ffunction-sections)
    target_link_options(kvtl_ik_llama PRIVATE -Wl,--gc-sections -Wl,-z,defs
                        "-Wl,--version-script,${PROJECT_BINARY_DIR}/ik_llama.map")
    set_target_properties(kvtl_ik_llama PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF CXX_STANDARD 17
                                                CXX_EXTENSIONS ON)
    target_link_libraries(kvtl_rivals INTERFACE kvtl_ik_llama)
    _kvtl_rival(IK)
endif()

list(JOIN _rivals " " _rivals)
message(STATUS "kvtl-kernels --rivals: ${_rivals}")
