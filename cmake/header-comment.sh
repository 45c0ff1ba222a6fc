#!/bin/sh
# A header as doxygen reads it: the comment that opens it becomes the documentation of the file, as it stands there.
#   header-comment.sh HEADER
# SPDX-License-Identifier: MIT
exec awk '
    NR == 1 && /^\/\// { opening = 1; print "/** @file"; print "@verbatim" }
    opening && !/^\/\// { opening = 0; print "@endverbatim */" }
    opening { if (!/SPDX/) { gsub(/\*\//, "* /"); print substr($0, 4) } next }
    { print }' "$1"
