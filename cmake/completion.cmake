# kvtl_completion(TARGET): has the program write bash's completion of its options whenever it is linked, into
# completions/NAME of the build folder, and installs that file where bash-completion looks for it.
function(kvtl_completion target)
    if(CMAKE_CROSSCOMPILING)
        return() # the program cannot be asked here
    endif()
    get_target_property(_name ${target} OUTPUT_NAME)
    set(_file "${PROJECT_BINARY_DIR}/completions/${_name}")
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/completions")
    add_custom_command(TARGET ${target} POST_BUILD COMMAND ${target} --completion bash > "${_file}" VERBATIM)
    if(KVTL_INSTALL)
        install(FILES "${_file}" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
                COMPONENT kvtl_completions OPTIONAL) # not every build has every program
    endif()
endfunction()
