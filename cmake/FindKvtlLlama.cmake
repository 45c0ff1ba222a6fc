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

# What is called here, in the tests and in the benchmark.
set(_functions
    llama_attach_threadpool llama_backend_init llama_batch_free llama_batch_get_one llama_batch_init
    llama_chat_apply_template llama_context_default_params llama_decode llama_detokenize llama_free llama_get_logits_ith
    llama_get_memory llama_get_model llama_init_from_model llama_log_set llama_max_parallel_sequences
    llama_memory_can_shift llama_memory_clear llama_memory_seq_add llama_memory_seq_pos_max llama_memory_seq_rm
    llama_model_chat_template llama_model_default_params llama_model_free llama_model_get_vocab llama_model_has_decoder
    llama_model_has_encoder llama_model_is_diffusion llama_model_is_hybrid llama_model_is_recurrent
    llama_model_load_from_file llama_model_n_ctx_train llama_model_n_head llama_model_n_head_kv llama_model_n_swa
    llama_n_batch llama_n_ctx llama_n_ubatch llama_perf_context_reset llama_state_get_data llama_state_get_size
    llama_state_set_data llama_token_to_piece llama_tokenize llama_vocab_is_eog llama_vocab_n_tokens llama_vocab_type
    ggml_backend_alloc_ctx_tensors ggml_backend_buffer_free ggml_backend_buffer_is_host ggml_backend_dev_backend_reg
    ggml_backend_dev_by_type ggml_backend_dev_init ggml_backend_free ggml_backend_graph_compute ggml_backend_load_all
    ggml_backend_load_all_from_path ggml_backend_reg_get_proc_address ggml_backend_tensor_get ggml_backend_tensor_set
    ggml_blck_size ggml_build_forward_expand ggml_custom_4d ggml_free ggml_graph_overhead_custom ggml_init
    ggml_is_contiguous ggml_is_quantized ggml_nbytes ggml_new_graph_custom ggml_new_tensor ggml_quantize_chunk
    ggml_set_name ggml_tensor_overhead ggml_threadpool_params_default ggml_type_name
    gguf_add_tensor gguf_free gguf_init_empty gguf_set_arr_data gguf_set_arr_str gguf_set_val_bool gguf_set_val_f32
    gguf_set_val_str gguf_set_val_u32 gguf_write_to_file)
# Types of what is found in a back-end at run time.
set(_declared ggml_backend_cpu_set_threadpool ggml_threadpool_free ggml_threadpool_new)
set(_types ggml_abort_callback ggml_backend_set_n_threads_t ggml_backend_reg_t llama_chat_message llama_memory_t)
set(_members
    llama_batch::embd llama_batch::logits llama_batch::n_seq_id llama_batch::n_tokens llama_batch::pos
    llama_batch::seq_id llama_batch::token)
foreach(_field abort_callback abort_callback_data attention_type cb_eval cb_eval_user_data ctx_other ctx_type embeddings
               flash_attn_type kv_unified n_batch n_ctx n_seq_max n_threads n_threads_batch n_ubatch offload_kqv
               pooling_type swa_full type_k type_v)
    list(APPEND _members llama_context_params::${_field})
endforeach()
list(APPEND _members
    llama_model_params::n_gpu_layers ggml_threadpool_params::poll ggml_tensor::buffer ggml_tensor::data ggml_tensor::name
    ggml_tensor::nb ggml_tensor::ne ggml_tensor::op ggml_tensor::op_params ggml_tensor::src ggml_tensor::view_src)
set(_values
    LLAMA_ATTENTION_TYPE_NON_CAUSAL LLAMA_CONTEXT_TYPE_DEFAULT LLAMA_CONTEXT_TYPE_MTP LLAMA_FLASH_ATTN_TYPE_AUTO
    LLAMA_FLASH_ATTN_TYPE_DISABLED LLAMA_FLASH_ATTN_TYPE_ENABLED LLAMA_POOLING_TYPE_MEAN LLAMA_POOLING_TYPE_NONE
    LLAMA_POOLING_TYPE_UNSPECIFIED LLAMA_VOCAB_TYPE_NONE
    GGML_BACKEND_DEVICE_TYPE_CPU GGML_LOG_LEVEL_ERROR GGML_MAX_N_THREADS GGML_N_TASKS_MAX GGML_OP_CONT GGML_OP_CPY
    GGML_OP_FLASH_ATTN_EXT GGML_OP_PERMUTE GGML_OP_RESHAPE GGML_OP_ROPE GGML_OP_SET_ROWS GGML_OP_TRANSPOSE GGML_OP_VIEW
    GGML_ROPE_TYPE_NEOX GGML_ROPE_TYPE_NORMAL GGML_STATUS_SUCCESS GGML_TYPE_BF16 GGML_TYPE_F16 GGML_TYPE_F32
    GGML_TYPE_I64 GGML_TYPE_MXFP4 GGML_TYPE_Q4_0 GGML_TYPE_Q4_K GGML_TYPE_Q8_0
    GGUF_TYPE_FLOAT32 GGUF_TYPE_INT32 GGUF_TYPE_UINT32)

# A folder that was named and does not do is an error, one that happens to lie there or is installed is not.
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
        add_library(kvtl_llama_candidate INTERFACE IMPORTED)
        set_target_properties(kvtl_llama_candidate PROPERTIES
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

# Headers and libraries must fit each other and have what is used: compiles and links the first `count` of all that.
macro(_kvtl_llama_has count result)
    list(SUBLIST _uses 0 ${count} _some)
    list(TRANSFORM _some PREPEND ", ")
    list(JOIN _some "" _some)
    check_cxx_source_compiles("#include <llama.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <gguf.h>
template <class T> int keep(T x) { static volatile T kept; kept = x; return 0; }
int main() { return 0 ${_some}; }" ${result})
endmacro()

# What of it is missing, the first that is; empty: nothing.
function(_kvtl_llama_check lacking)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES kvtl_llama_candidate)
    set(CMAKE_REQUIRED_QUIET ON)
    set(_names ${_functions} ${_declared} ${_types} ${_members} ${_values})
    list(TRANSFORM _functions REPLACE "(.+)" "keep(&\\1)")
    list(TRANSFORM _members REPLACE "(.+)" "keep(sizeof(\\1))")
    list(TRANSFORM _declared REPLACE "(.+)" "keep(sizeof(&\\1))")
    list(TRANSFORM _types REPLACE "(.+)" "keep(sizeof(\\1))")
    list(TRANSFORM _values REPLACE "(.+)" "keep(\\1)")
    set(_uses ${_functions} ${_declared} ${_types} ${_members} ${_values})
    list(LENGTH _uses _all)

    # A result belongs to the folder it was found in.
    string(MAKE_C_IDENTIFIER "KVTL_LLAMA_HAS_ALL_${_all}_${_where}_${_version}" _has_all)
    _kvtl_llama_has(${_all} ${_has_all})
    set(${lacking} "" PARENT_SCOPE)
    if(${_has_all})
        return()
    endif()
    unset(${_has_all} CACHE) # another one may be put there
    # The first _good compile, the first _bad do not.
    set(_good -1)
    set(_bad ${_all})
    math(EXPR _apart "${_bad} - ${_good}")
    while(_apart GREATER 1)
        math(EXPR _half "${_good} + ${_apart} / 2")
        _kvtl_llama_has(${_half} KVTL_LLAMA_HAS_SOME)
        if(KVTL_LLAMA_HAS_SOME)
            set(_good ${_half})
        else()
            set(_bad ${_half})
        endif()
        unset(KVTL_LLAMA_HAS_SOME CACHE)
        math(EXPR _apart "${_bad} - ${_good}")
    endwhile()
    set(_first "a header (llama.h, ggml-backend.h, ggml-cpu.h, gguf.h), or a library that it needs")
    if(_bad GREATER 0)
        list(GET _names ${_good} _first)
    endif()
    set(${lacking} "${_first}" PARENT_SCOPE)
endfunction()

function(_kvtl_llama_find)
    if(NOT KVTL_LLAMA_ROOT)
        message(STATUS "kvtl-llama is left out: KVTL_LLAMA_ROOT is off")
        return()
    endif()
    if(CMAKE_CROSSCOMPILING AND KVTL_LLAMA_ROOT STREQUAL _default_root)
        message(STATUS "kvtl-llama is left out: build/llama.cpp is for this machine, the build for another")
        return()
    endif()
    set(_where "${KVTL_LLAMA_ROOT}")
    _kvtl_llama_from_folder("${KVTL_LLAMA_ROOT}")
    if(NOT TARGET kvtl_llama_candidate AND KVTL_LLAMA_ROOT STREQUAL _default_root)
        set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
        find_package(llama CONFIG QUIET)
        if(llama_FOUND)
            add_library(kvtl_llama_candidate INTERFACE IMPORTED)
            target_link_libraries(kvtl_llama_candidate INTERFACE llama)
            set(_where "${llama_DIR}")
            set(_backends "")
            set(_version "unknown")
            if(LLAMA_VERSION)
                set(_version "v${LLAMA_VERSION}")
            elseif(LLAMA_BUILD_NUMBER)
                set(_version "b${LLAMA_BUILD_NUMBER}")
            endif()
        endif()
    endif()
    if(NOT TARGET kvtl_llama_candidate)
        _kvtl_llama_complain("no llama.cpp in ${KVTL_LLAMA_ROOT}; scripts/deps.sh --llama fetches one")
        return()
    endif()
    _kvtl_llama_check(_lacking)
    if(_lacking)
        _kvtl_llama_complain("llama.cpp ${_version} of ${_where} lacks ${_lacking}; scripts/deps.sh --llama fetches one that has it")
        return()
    endif()
    # Only now: who looks for this target builds with it.
    add_library(kvtl_llama_cpp INTERFACE IMPORTED GLOBAL)
    foreach(_property INTERFACE_INCLUDE_DIRECTORIES INTERFACE_LINK_LIBRARIES)
        get_target_property(_value kvtl_llama_candidate ${_property})
        if(_value)
            set_target_properties(kvtl_llama_cpp PROPERTIES ${_property} "${_value}")
        endif()
    endforeach()
    set_target_properties(kvtl_llama_cpp PROPERTIES INTERFACE_COMPILE_DEFINITIONS
        "KVTL_LLAMA_BACKENDS=\"${_backends}\";KVTL_LLAMA_VERSION=\"${_version}\"")
    message(STATUS "kvtl-llama: llama.cpp ${_version}")
    set(KvtlLlama_FOUND TRUE PARENT_SCOPE)
endfunction()
_kvtl_llama_find()
