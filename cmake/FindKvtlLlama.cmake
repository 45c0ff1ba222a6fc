# Finds llama.cpp for kvtl-llama: the folder KVTL_LLAMA_ROOT (include/ with llama.h, lib/ with the shared libraries, such
# as `scripts/deps.sh --llama` or `cmake --install` of llama.cpp make), or else an installed one that has a package file.
#
#   KvtlLlama_FOUND     whether one was found that has all that is called
#   kvtl_llama_cpp      imported target: headers, libraries, and the definitions
#                       KVTL_LLAMA_BACKENDS  folder whose ggml back-ends have to be loaded; empty where they are linked
#                       KVTL_LLAMA_VERSION   such as v0.5.0
#
# Where there is none, one line says what to do, and whoever includes this leaves out what needs it.
set(_default_root "${PROJECT_SOURCE_DIR}/build/llama.cpp")
set(KVTL_LLAMA_ROOT "${_default_root}" CACHE PATH "Folder of llama.cpp: include/, lib/; OFF: do without")
set(KvtlLlama_FOUND FALSE)

# What kvtl_llama calls that not every llama.cpp has, or that came lately.
set(_symbols
    llama_attach_threadpool llama_chat_apply_template llama_get_memory llama_init_from_model llama_memory_seq_pos_max
    llama_memory_seq_rm llama_model_chat_template llama_model_has_encoder llama_model_is_diffusion llama_model_is_hybrid
    llama_model_is_recurrent llama_model_load_from_file llama_model_meta_val_str llama_set_abort_callback
    ggml_backend_load_all_from_path ggml_backend_tensor_set ggml_threadpool_params_default gguf_write_to_file)

# A folder that was named and does not do is an error, one that happens to lie there is not.
macro(_kvtl_llama_complain text)
    if(KVTL_LLAMA_ROOT STREQUAL _default_root)
        message(STATUS "kvtl-llama is left out: ${text}")
    else()
        message(FATAL_ERROR "KVTL_LLAMA_ROOT: ${text}")
    endif()
endmacro()

macro(_kvtl_llama_from_folder root)
    set(_libraries "")
    foreach(_part llama ggml ggml-base ggml-cpu)
        # Also libllama.v0.5.0.so; of several the first by name.
        file(GLOB _found "${root}/lib/lib${_part}.so" "${root}/lib/lib${_part}.v*.so" "${root}/lib64/lib${_part}.so")
        if(_found)
            list(GET _found 0 _one)
            list(APPEND _libraries "${_one}")
        elseif(NOT _part STREQUAL "ggml-cpu") # a plain one is linked, variants are loaded
            set(_libraries "")
            break()
        endif()
    endforeach()
    if(_libraries AND EXISTS "${root}/include/llama.h")
        add_library(kvtl_llama_cpp INTERFACE IMPORTED GLOBAL)
        set_target_properties(kvtl_llama_cpp PROPERTIES
            INTERFACE_INCLUDE_DIRECTORIES "${root}/include" # of an imported target: system headers, no warnings
            INTERFACE_LINK_LIBRARIES "${_libraries}")
        file(GLOB _variants "${root}/lib/libggml-cpu-*.so" "${root}/lib64/libggml-cpu-*.so" "${root}/bin/libggml-cpu-*.so")
        set(_backends "")
        if(_variants)
            list(GET _variants 0 _one)
            get_filename_component(_backends "${_one}" DIRECTORY)
        endif()
        set(_version "unknown")
        if(EXISTS "${root}/VERSION")
            file(STRINGS "${root}/VERSION" _version LIMIT_COUNT 1)
        endif()
    endif()
endmacro()

function(_kvtl_llama_find)
    if(NOT KVTL_LLAMA_ROOT)
        message(STATUS "kvtl-llama is left out: KVTL_LLAMA_ROOT is off")
        return()
    endif()
    if(CMAKE_CROSSCOMPILING AND KVTL_LLAMA_ROOT STREQUAL _default_root)
        message(STATUS "kvtl-llama is left out: build/llama.cpp is for this machine, the build for another")
        return()
    endif()
    _kvtl_llama_from_folder("${KVTL_LLAMA_ROOT}")
    if(NOT TARGET kvtl_llama_cpp AND KVTL_LLAMA_ROOT STREQUAL _default_root)
        set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
        find_package(llama CONFIG QUIET)
        if(llama_FOUND)
            add_library(kvtl_llama_cpp INTERFACE IMPORTED GLOBAL)
            target_link_libraries(kvtl_llama_cpp INTERFACE llama)
            set(_backends "")
            set(_version "unknown")
            if(LLAMA_VERSION)
                set(_version "v${LLAMA_VERSION}")
            elseif(LLAMA_BUILD_NUMBER)
                set(_version "b${LLAMA_BUILD_NUMBER}")
            endif()
        endif()
    endif()
    if(NOT TARGET kvtl_llama_cpp)
        _kvtl_llama_complain("no llama.cpp in ${KVTL_LLAMA_ROOT}; scripts/deps.sh --llama fetches one")
        return()
    endif()
    set_property(TARGET kvtl_llama_cpp PROPERTY INTERFACE_COMPILE_DEFINITIONS
                 "KVTL_LLAMA_BACKENDS=\"${_backends}\"" "KVTL_LLAMA_VERSION=\"${_version}\"")

    # Headers and libraries must fit each other and have what is called: all at once, and one by one to name the culprit.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES kvtl_llama_cpp)
    set(CMAKE_REQUIRED_QUIET ON)
    set(_include "#include <llama.h>\n#include <ggml-backend.h>\n#include <gguf.h>\n")
    list(TRANSFORM _symbols PREPEND "(void*)&" OUTPUT_VARIABLE _uses)
    list(JOIN _uses ", " _uses)
    # A result belongs to the folder it was found in.
    string(MAKE_C_IDENTIFIER "KVTL_LLAMA_HAS_ALL_${KVTL_LLAMA_ROOT}_${_version}" _all)
    check_cxx_source_compiles("${_include}int main(int n, char**) { void* all[] = {${_uses}}; return all[n] == nullptr; }"
                              ${_all})
    if(NOT ${_all})
        set(_lacking "something that its headers declare")
        foreach(_symbol IN LISTS _symbols)
            string(MAKE_C_IDENTIFIER "KVTL_LLAMA_HAS_${_symbol}_${KVTL_LLAMA_ROOT}_${_version}" _one)
            check_cxx_source_compiles(
                "${_include}int main(int n, char**) { void* all[] = {(void*)&${_symbol}}; return all[n] == nullptr; }" ${_one})
            if(NOT ${_one})
                set(_lacking "${_symbol}")
                break()
            endif()
        endforeach()
        unset(${_all} CACHE) # another one may be put there
        unset(${_one} CACHE)
        _kvtl_llama_complain("llama.cpp ${_version} of ${KVTL_LLAMA_ROOT} lacks ${_lacking}; scripts/deps.sh --llama fetches one that has it")
        return()
    endif()
    message(STATUS "kvtl-llama: llama.cpp ${_version}")
    set(KvtlLlama_FOUND TRUE PARENT_SCOPE)
endfunction()
_kvtl_llama_find()
