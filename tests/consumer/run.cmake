# One test of the package, run as `cmake -DHOW=... -D... -P run.cmake` by CTest (see CMakeLists.txt).
#   HOW     subdirectory | package | refused | pkgconfig | headers | amalgamated
#   SOURCE  root of kvtl            STAGE  prefix that kvtl was installed to
#   WORK    folder for this test    VERSION, COMPONENTS, CXX  what the build that runs the tests uses
cmake_minimum_required(VERSION 3.25)

# Runs a command, stops with its output if it fails, and leaves the output in `text`.
macro(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE _status OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT _status EQUAL 0)
        message(FATAL_ERROR "exit status ${_status} of: ${ARGN}\n${text}")
    endif()
endmacro()

function(expect_text what text wanted)
    string(FIND "${text}" "${wanted}" _at)
    if(_at EQUAL -1)
        message(FATAL_ERROR "${what}: expected to read `${wanted}` in:\n${text}")
    endif()
endfunction()

# Configures the user's project with `ARGN`; the result is in `status` and `text`.
macro(configure)
    file(REMOVE_RECURSE "${WORK}")
    execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${WORK}"
                            "-DCMAKE_CXX_COMPILER=${CXX}" "-DKVTL_COMPONENTS=${COMPONENTS}"
                            -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF ${ARGN}
                    RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
endmacro()

function(build_and_run)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "configuring failed:\n${text}")
    endif()
    run("${CMAKE_COMMAND}" --build "${WORK}" --target consumer)
    run("${WORK}/consumer")
    expect_text("the program" "${text}" "kvtl ${VERSION}")
endfunction()

string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" minor_version "${VERSION}")
math(EXPR next_minor "${CMAKE_MATCH_2} + 1")
set(next_minor "${CMAKE_MATCH_1}.${next_minor}")

if(HOW STREQUAL "subdirectory")
    configure("-DKVTL_SOURCE=${SOURCE}")
    build_and_run()

elseif(HOW STREQUAL "package")
    configure("-DCMAKE_PREFIX_PATH=${STAGE}" "-DKVTL_VERSION=${minor_version}")
    expect_text("find_package" "${text}" "found kvtl ${VERSION} in ${STAGE}/")
    build_and_run()
    run("${CMAKE_COMMAND}" --build "${WORK}" --target compiled)
    run("${WORK}/compiled")
    expect_text("the program" "${text}" "4 of 4 tokens")
    if("calibrate" IN_LIST COMPONENTS)
        run("${CMAKE_COMMAND}" --build "${WORK}" --target calibrator)
        run("${CMAKE_COMMAND}" -E chdir "${WORK}" ./calibrator)
        expect_text("the fit" "${text}" "first direction 0.6 0 0.8 0")
    endif()

elseif(HOW STREQUAL "refused")
    # 0.x promises nothing across minor versions, and a newer version than the installed one is not there.
    foreach(_wrong "${next_minor}" "${VERSION}.1" "9.9")
        configure("-DCMAKE_PREFIX_PATH=${STAGE}" "-DKVTL_VERSION=${_wrong}")
        if(status EQUAL 0)
            message(FATAL_ERROR "kvtl ${VERSION} is installed, but find_package(kvtl ${_wrong}) accepted it")
        endif()
        expect_text("find_package(kvtl ${_wrong})" "${text}" "kvtl-config.cmake, version: ${VERSION}")
    endforeach()
    set(COMPONENTS no_such_component)
    configure("-DCMAKE_PREFIX_PATH=${STAGE}" "-DKVTL_VERSION=${minor_version}")
    if(status EQUAL 0)
        message(FATAL_ERROR "find_package accepted a component that does not exist")
    endif()
    expect_text("a missing component" "${text}" "no_such_component")
    # Where Eigen is missing a user who asks for the fits is told what to install, others notice nothing.
    set(COMPONENTS calibrate)
    configure("-DCMAKE_PREFIX_PATH=${STAGE}" "-DKVTL_VERSION=${minor_version}" -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON)
    if(status EQUAL 0)
        message(FATAL_ERROR "find_package found component calibrate without Eigen")
    endif()
    string(REGEX REPLACE "[ \n]+" " " text "${text}") # CMake breaks lines
    expect_text("calibrate without Eigen" "${text}"
                "no component `calibrate` here; valid: compiled, uring, with liburing >= 2.3 on this machine, tls, with OpenSSL >= 3 (Debian: libssl-dev), and calibrate, with Eigen 3 (Debian: libeigen3-dev)")
    set(COMPONENTS "")
    configure("-DCMAKE_PREFIX_PATH=${STAGE}" "-DKVTL_VERSION=${minor_version}" -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON)
    expect_text("find_package without Eigen" "${text}" "found kvtl ${VERSION} in ${STAGE}/")
    configure("-DKVTL_SOURCE=${SOURCE}" -DKVTL_WITH_CALIBRATE=ON -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON)
    if(status EQUAL 0)
        message(FATAL_ERROR "KVTL_WITH_CALIBRATE=ON was accepted without Eigen")
    endif()
    expect_text("KVTL_WITH_CALIBRATE=ON" "${text}" "KVTL_WITH_CALIBRATE=ON, but find_package(Eigen3) finds none")

elseif(HOW STREQUAL "pkgconfig")
    # The tree is moved first: nothing in kvtl.pc may remember where it was installed.
    file(REMOVE_RECURSE "${WORK}")
    file(COPY "${STAGE}/" DESTINATION "${WORK}/moved")
    set(ENV{PKG_CONFIG_PATH} "${WORK}/moved/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
    run(pkg-config --modversion kvtl)
    string(STRIP "${text}" text)
    if(NOT text STREQUAL VERSION)
        message(FATAL_ERROR "kvtl.pc says version ${text}, the headers say ${VERSION}")
    endif()
    execute_process(COMMAND pkg-config --exists "kvtl >= ${next_minor}" RESULT_VARIABLE status)
    if(status EQUAL 0)
        message(FATAL_ERROR "pkg-config accepted kvtl >= ${next_minor}")
    endif()
    run(pkg-config --cflags --libs kvtl)
    expect_text("pkg-config --cflags" "${text}" "-I${WORK}/moved")
    separate_arguments(_flags UNIX_COMMAND "${text}")
    run("${CXX}" -std=c++20 "${CMAKE_CURRENT_LIST_DIR}/main.cpp" ${_flags} -o "${WORK}/consumer")
    run("${WORK}/consumer")
    expect_text("the program" "${text}" "kvtl ${VERSION}")
    # A program in two parts: its own, and what is compiled once. HOW=package links the same sources and runs them; here
    # the flags are read, which takes a fifth of the time.
    run(pkg-config --variable=source kvtl-compiled)
    string(STRIP "${text}" _source)
    run(pkg-config --cflags --libs kvtl-compiled)
    expect_text("pkg-config --cflags kvtl-compiled" "${text}" "-DKVTL_COMPILED")
    separate_arguments(_flags UNIX_COMMAND "${text}")
    run("${CXX}" -std=c++20 -fsyntax-only "${CMAKE_CURRENT_LIST_DIR}/compiled.cpp" "${_source}" ${_flags})

elseif(HOW STREQUAL "headers")
    # A header outside the file sets would work here and be missing for everyone else.
    file(GLOB_RECURSE _ours RELATIVE "${SOURCE}/include" "${SOURCE}/include/*")
    file(GLOB_RECURSE _theirs RELATIVE "${STAGE}/include" "${STAGE}/include/*")
    if(NOT "uring" IN_LIST COMPONENTS)
        list(REMOVE_ITEM _ours kvtl/io/uring_file.hpp)
    endif()
    if(NOT "tls" IN_LIST COMPONENTS)
        list(REMOVE_ITEM _ours kvtl/store/tls_stream.hpp)
    endif()
    if(NOT "calibrate" IN_LIST COMPONENTS)
        list(FILTER _ours EXCLUDE REGEX "^kvtl/calibration/fit/")
    endif()
    if(NOT _ours STREQUAL _theirs)
        message(FATAL_ERROR "in the source tree: ${_ours}\ninstalled: ${_theirs}")
    endif()

elseif(HOW STREQUAL "amalgamated")
    # Presets of both kinds, and nothing of kvtl to be found but the one header.
    file(REMOVE_RECURSE "${WORK}")
    file(MAKE_DIRECTORY "${WORK}")
    execute_process(COMMAND "${SOURCE}/scripts/amalgamate" dynakv --in-memory
                    RESULT_VARIABLE _status OUTPUT_FILE "${WORK}/kvtl_one.hpp" ERROR_VARIABLE text)
    if(NOT _status EQUAL 0)
        message(FATAL_ERROR "amalgamate: exit status ${_status}\n${text}")
    endif()
    run("${CXX}" -std=c++20 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Werror "-I${WORK}"
        "${CMAKE_CURRENT_LIST_DIR}/amalgamated.cpp" -o "${WORK}/amalgamated" -lpthread)
    run("${WORK}/amalgamated")
    expect_text("the program" "${text}" "kvtl ${VERSION}")
    # Without io_uring: one sentence, and compilation ends there.
    execute_process(COMMAND "${CXX}" -std=c++20 -DKVTL_HAS_URING=1 -fsyntax-only "-I${WORK}"
                            "${CMAKE_CURRENT_LIST_DIR}/amalgamated.cpp"
                    RESULT_VARIABLE _status OUTPUT_VARIABLE text ERROR_VARIABLE text)
    string(REGEX MATCHALL "error: " _errors "${text}")
    list(LENGTH _errors _errors)
    if(_status EQUAL 0 OR NOT text MATCHES "one header has no io_uring" OR NOT _errors EQUAL 2)
        message(FATAL_ERROR "one header with KVTL_HAS_URING: exit status ${_status}, expected two errors, read:\n${text}")
    endif()
    foreach(_wrong "dynkv" "--no-such-option" "")
        separate_arguments(_wrong)
        execute_process(COMMAND "${SOURCE}/scripts/amalgamate" ${_wrong}
                        RESULT_VARIABLE _status OUTPUT_VARIABLE _written ERROR_VARIABLE text)
        string(REGEX MATCHALL "\n" _lines "${text}")
        list(LENGTH _lines _lines)
        if(NOT _status EQUAL 2 OR NOT _lines EQUAL 1 OR NOT _written STREQUAL "")
            message(FATAL_ERROR "amalgamate ${_wrong}: exit status ${_status}, expected 2 and one line, read:\n${text}${_written}")
        endif()
    endforeach()

else()
    message(FATAL_ERROR "unknown HOW=${HOW}")
endif()
