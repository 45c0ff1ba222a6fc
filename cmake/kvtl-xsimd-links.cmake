# Included after xsimd was found, here and by users of the installed package.
#
# Debian 12's xsimd 8.1 says that it links `xtl`, another header-only library, which its package does not even depend on
# and which only XSIMD_ENABLE_XTL_COMPLEX would use. Where no target of that name exists CMake turns it into -lxtl, and
# no program links.
get_target_property(_kvtl_xsimd_links xsimd INTERFACE_LINK_LIBRARIES)
if("xtl" IN_LIST _kvtl_xsimd_links AND NOT TARGET xtl)
    list(REMOVE_ITEM _kvtl_xsimd_links xtl)
    set_target_properties(xsimd PROPERTIES INTERFACE_LINK_LIBRARIES "${_kvtl_xsimd_links}")
endif()
unset(_kvtl_xsimd_links)
