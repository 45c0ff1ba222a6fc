# Writes OUT with the commit that SOURCE is at, when that has changed: `cmake -DSOURCE=... -DOUT=... -P kvtl-commit.cmake`,
# at every build, because a configuration outlives commits. "-dirty": tracked files differ from it.
set(_commit unknown)
find_program(_git git)
if(_git)
    execute_process(COMMAND "${_git}" -C "${SOURCE}" describe --always --dirty --exclude=* OUTPUT_VARIABLE _described
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _status)
    if(_status EQUAL 0)
        set(_commit "${_described}")
    endif()
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define KVTL_COMMIT \"${_commit}\"\n")
