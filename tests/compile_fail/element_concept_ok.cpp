// The control of element_concept.cpp: the same code with a type that may be stored.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/element.hpp>
#include <kvtl/views.hpp>

template <kvtl::element E> float first(kvtl::rows_view<E> rows) {
    return kvtl::to_float(rows.row(0)[0]);
}

float right(kvtl::rows_view<kvtl::f16> rows) {
    return first(rows);
}
