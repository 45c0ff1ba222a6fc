// All SIMD kernels. Each header of simd/ may also be included alone.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/simd/checksum.hpp>
#include <kvtl/simd/combine.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/simd/nearest_code.hpp>
#include <kvtl/simd/packed.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/simd/spread_gain.hpp>
#include <kvtl/simd/tile.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/simd/unroll.hpp>
