// Which layers of the model share a store (cache_config::owner), and which of them appends to it.
//
// What:   a cache has as many stores as there are owners; plans, shards and saved sequences count stores, only calls
//         count layers of the model. A store is numbered by the layer that completes it, the last that attends it, so that
//         stores are completed in the order of their numbers. Until that layer comes, the others attend the store and what the
//         call brings, and leave the store as it was: so prompts are exact for all of them, whatever is dropped at their end.
// Source: Brandon et al., Reducing Transformer Key-Value Cache Size with Cross-Layer Attention (2024), section 3.2; Sun et
//         al., You Only Cache Once (2024), section 2.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

class layer_map {
  public:
    /// owner: of each layer of the model; empty: every layer its own. Fails where it names a later layer, or one that has
    /// another owner.
    [[nodiscard, gnu::cold]] static result<layer_map> make(std::span<const std::uint32_t> owner,
                                                           std::uint32_t layers) {
        layer_map m;
        m.stores_ = m.layers_ = layers;
        if (owner.empty()) return m;
        if (owner.size() != layers)
            return status::failure(errc::invalid_argument,
                                   "owner has %zu numbers; valid: one per layer, %u, or none", owner.size(),
                                   layers);
        for (std::uint32_t l = 0; l < layers; ++l) {
            const std::uint32_t of = owner[l];
            if (of > l)
                return status::failure(errc::invalid_argument,
                                       "owner[%u] is %u; valid: the layer itself or one before it, 0 to %u",
                                       l, of, l);
            if (owner[of] != of)
                return status::failure(
                    errc::invalid_argument,
                    "owner[%u] is %u, whose owner is layer %u; valid: a layer that is its own owner", l, of,
                    owner[of]);
        }
        std::vector<std::uint32_t> last(layers); // of each owner
        for (std::uint32_t l = 0; l < layers; ++l) last[owner[l]] = l;
        for (std::uint32_t l = 0; l < layers; ++l)
            if (last[owner[l]] == l) m.owner_.push_back(owner[l]), m.last_.push_back(l);
        m.stores_ = static_cast<std::uint32_t>(m.owner_.size());
        if (!m.shares()) return m.owner_.clear(), m.last_.clear(), m;
        for (const std::uint32_t of : owner)
            m.store_.push_back(static_cast<std::uint32_t>(std::find(m.owner_.begin(), m.owner_.end(), of) -
                                                          m.owner_.begin()));
        return m;
    }

    /// attention_rule's windows, of stores instead of layers. Fails where a layer that slides shares its store.
    [[nodiscard, gnu::cold]] result<std::vector<std::uint32_t>>
    windows_of_stores(std::span<const std::uint32_t> windows) const {
        std::vector<std::uint32_t> of_stores;
        if (windows.empty()) return of_stores;
        if (windows.size() != layers_)
            return status::failure(errc::invalid_argument,
                                   "attention.windows has %zu numbers; valid: one per layer, %u, or none",
                                   windows.size(), layers_);
        for (std::uint32_t l = 0; l < layers_; ++l)
            if (is_shared(store_of(l)) && windows[l] != 0)
                return status::failure(errc::unsupported,
                                       "owner: layer %u shares its cache and slides over %u tokens; valid: "
                                       "layers that slide are their own owners",
                                       l, windows[l]);
        for (std::uint32_t s = 0; s < stores_; ++s) of_stores.push_back(windows[owner_of(s)]);
        return of_stores;
    }

    [[nodiscard]] std::uint32_t layers() const noexcept { return layers_; } ///< of the model
    [[nodiscard]] std::uint32_t stores() const noexcept { return stores_; }
    [[nodiscard]] bool shares() const noexcept { return stores_ < layers_; }
    /// The store that a layer attends.
    [[nodiscard]] std::uint32_t store_of(std::size_t layer) const noexcept {
        return shares() ? store_[layer] : static_cast<std::uint32_t>(layer);
    }
    /// The layer whose keys and values a store has.
    [[nodiscard]] std::uint32_t owner_of(std::uint32_t store) const noexcept {
        return shares() ? owner_[store] : store;
    }
    /// Tokens of a call for this layer stay in its store.
    [[nodiscard]] bool completes(std::size_t layer) const noexcept {
        return !shares() || last_[store_[layer]] == layer;
    }
    /// The next layer that attends another store, or the layer itself.
    [[nodiscard]] std::size_t next_store(std::size_t layer) const noexcept {
        std::size_t next = (layer + 1) % layers_;
        while (next != layer && store_of(next) == store_of(layer)) next = (next + 1) % layers_;
        return next;
    }
    /// Layers share the store of this one.
    [[nodiscard]] bool is_shared(std::uint32_t store) const noexcept {
        return shares() && owner_[store] != last_[store];
    }

  private:
    std::uint32_t layers_ = 0, stores_ = 0;
    std::vector<std::uint32_t> store_;        ///< per layer; empty where none shares
    std::vector<std::uint32_t> owner_, last_; ///< per store: its first and its last layer; likewise
};

}} // namespace kvtl::v0
