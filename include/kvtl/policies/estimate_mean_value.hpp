// Estimator: the mean value gets the softmax mass that was not attended (SparQ Attention §3, step 3).
//
// SparQ estimates the missing mass from its approximate scores and keeps a running mean of all values. Here
// the mass comes from the means of the units: the sum over missing units of n exp(s q . mean key). An
// estimator sees units, not the scores of the index. The mean value is the mean over all entries in units.
// With units of one entry the mass is exact. If a unit's own mean value is available, as here,
// centroid_estimate uses it and is better. This policy is the control for the effect of mean values per unit.
//
// Bytes and cost: as centroid_estimate.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/estimate_centroid.hpp>

namespace kvtl { inline namespace v0 {

using mean_value = unit_estimate<estimate_options{.pooled = true}>;

}} // namespace kvtl::v0
