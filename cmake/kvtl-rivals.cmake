# Libraries that kvtl-kernels --rivals compares with: kvtl_rivals links those that are found and defines KVTL_RIVAL_<NAME> for
# each. None is needed for anything else, and kvtl-kernels names those that are missing.
#
#   OpenBLAS, hnswlib, faiss   as Debian has them (libopenblas-dev, libhnswlib-dev, libfaiss-dev)
#   simsimd                    KVTL_SIMSIMD_INCLUDE: the folder that has simsimd/simsimd.h, such as `include` of the npm package
#   ggml                       the llama.cpp that kvtl-llama was built with
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

list(JOIN _rivals " " _rivals)
message(STATUS "kvtl-kernels --rivals: ${_rivals}")
