// Estimator: the softmax mass that was not attended goes to the mean value (SparQ Attention §3, step 3).
//
// SparQ estimates the missing mass from its approximate scores and keeps a running mean of all values. Here
// the mass is that of the units' means, sum over missing units of n exp(s q . mean key), since an estimator
// sees units, not the scores of the index; the mean value is that of all entries in units. With units of one
// entry the mass is exact. Where a unit's own mean value is at hand anyway, as here, centroid_estimate uses
// it and is better: this one is the control that shows what the value means are worth.
//
// Bytes and cost: those of centroid_estimate.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/estimate_centroid.hpp>

namespace kvtl { inline namespace v0 {

using mean_value = unit_estimate<estimate_options{.pooled = true}>;

}} // namespace kvtl::v0
