# `site`: static pages of the documentation, the results and the comments of the headers, in BUILD/site.
find_program(KVTL_PYTHON3 python3)
if(KVTL_PYTHON3)
    add_custom_target(site COMMAND "${KVTL_PYTHON3}" "${PROJECT_SOURCE_DIR}/scripts/site/site.py" "${PROJECT_BINARY_DIR}/site"
                      COMMAND "${KVTL_PYTHON3}" "${PROJECT_SOURCE_DIR}/scripts/site/site.py" --check "${PROJECT_BINARY_DIR}/site"
                      COMMENT "Pages of the documentation" VERBATIM)
endif()

# `docs`: the reference of the headers, in BUILD/docs/html, where doxygen is installed. A warning is an error.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
    return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
set(DOXYGEN_EXTRACT_ALL YES) # what a name says needs no comment
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_INPUT_FILTER "${PROJECT_SOURCE_DIR}/cmake/header-comment.sh") # the comment that opens a header is the file's
set(DOXYGEN_STRIP_FROM_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_STRIP_FROM_INC_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_INLINE_INHERITED_MEMB YES)
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_GENERATE_LATEX NO)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_PREDEFINED KVTL_HAS_URING=1)
doxygen_add_docs(docs "${PROJECT_SOURCE_DIR}/include/kvtl" COMMENT "Reference of the headers")
