// Entries are stored as f32, f16 or bf16 and nothing else; a double is refused where it is used, by name.
// expect-error: constraints not satisfied
// expect-error: with E = double
// SPDX-License-Identifier: MIT
#include <kvtl/element.hpp>
#include <kvtl/views.hpp>

template <kvtl::element E> float first(kvtl::rows_view<E> rows) {
    return kvtl::to_float(rows.row(0)[0]);
}

float wrong(kvtl::rows_view<double> rows) {
    return first(rows);
}
