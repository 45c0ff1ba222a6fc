# The presets that the programs can choose by name: one line each. The line becomes an entry of the registry, and the
# lines of a header become a translation unit. `demo` marks the ten that KVTL_PRESETS=demo builds. Family and description
# are what --list-policies prints on a terminal; no quotes and no semicolons in them.
#   name  header in kvtl/presets/  family  [demo]  'description'

# The families, in the order in which they are listed.
set(KVTL_PRESET_FAMILIES
    "exact: everything is attended"
    "retrieval: all entries on storage, some chosen at every step"
    "eviction: entries over budget are dropped or merged for good"
    "compression: entries stored with fewer bits or numbers"
    "composition: evicted or compressed, then retrieved"
    "reference: what policies are compared with")

set(KVTL_PRESET_TABLE
    "full full exact demo 'attention over all entries, in memory'"
    # DynaKV, its ablations and its estimate
    "dynakv dynakv retrieval demo 'DynaKV: clusters that split as they spread, chosen by their mean keys'"
    "dynakv_static dynakv retrieval 'DynaKV with clusters that never split'"
    "dynakv_unit_contiguous dynakv retrieval 'DynaKV with a run of pages for each cluster'"
    "dynakv_lru dynakv retrieval 'DynaKV with the least recently used cluster leaving memory first'"
    "dynakv_estimate estimate retrieval demo 'DynaKV with an estimate for every cluster that is not read'"
    "dynakv_top_p estimate retrieval 'dynakv_estimate that reads clusters until these hold 95 % of the attention'"
    "kvtl_best best retrieval demo 'clusters, read where their estimate errs most, at one price for all heads'"
    # A coarse level above the clusters
    "dynakv_two_level two_level retrieval 'DynaKV that looks at the clusters of the best blocks alone'"
    "dynakv_two_level_int8 two_level composition 'the same over signed bytes'"
    # Layers that have the memory of their cache in turn
    "dynakv_virtualised virtualised retrieval 'DynaKV whose layers have the memory of the cache in turn'"
    "dynakv_estimate_virtualised virtualised retrieval 'dynakv_estimate whose layers have the memory in turn'"
    "dynakv_two_level_int8_virtualised virtualised composition 'dynakv_two_level_int8 whose layers have the memory in turn'"
    "clusterkv_virtualised virtualised retrieval 'ClusterKV whose layers have the memory in turn'"
    # Entries as signed bytes
    "full_int8 int8 compression 'everything attended, as signed bytes with a scale per row'"
    "snapkv_int8 int8 composition 'SnapKV, what it keeps as signed bytes'"
    "dynakv_int8 int8 composition 'DynaKV over signed bytes'"
    "kvswap_int8 int8 composition 'KVSwap over signed bytes'"
    # Entries as 8-bit floats
    "full_fp8 int8 compression 'everything attended, as 8-bit floats with a scale per row'"
    "dynakv_fp8 int8 composition 'DynaKV over 8-bit floats'"
    # Entries of 4 bits, or of 8 bits for keys and 4 for values
    "full_k8v4 low_bits compression 'everything attended, keys of 8 bits and values of 4'"
    "full_int4 low_bits compression 'everything attended, 4 bits with a scale per 32 numbers'"
    "full_int2 low_bits compression 'everything attended, 2 bits with a scale per 32 numbers'"
    "snapkv_int4 low_bits composition 'SnapKV, what it keeps in 4 bits'"
    "dynakv_k8v4 low_bits composition 'DynaKV over keys of 8 bits and values of 4'"
    "kvswap_int4 low_bits composition 'KVSwap over 4 bits'"
    "flexgen_int4 low_bits composition 'FlexGen over 4 bits'"
    # The same, rotated by a Hadamard matrix per head before
    "full_k8v4_rotated low_bits compression 'full_k8v4 with keys and values rotated per head'"
    "full_int4_rotated low_bits compression 'full_int4 with keys and values rotated per head'"
    "full_int2_rotated low_bits compression 'full_int2 with keys and values rotated per head'"
    "dynakv_int4_rotated low_bits composition 'DynaKV over 4 bits, rotated per head'"
    # Keys by channel, values by token
    "kivi_4 kivi compression 'KIVI: 4 bits, keys by channel and values by token, everything attended'"
    "kivi_2 kivi compression 'KIVI with 2 bits'"
    "gear gear compression 'GEAR: KIVI with 2 bits, and a low rank and outliers of what these lose'"
    # Levels fitted to the model, keys before RoPE by channel
    "kvquant_4 kvquant compression 'KVQuant: 4 bits with fitted levels, keys before RoPE, outliers apart'"
    "kvquant_2 kvquant compression 'KVQuant with 2 bits'"
    "dynakv_kvquant kvquant composition 'DynaKV over the entries of KVQuant, 4 bits'"
    # Keys without the channels that matter least
    "think think compression 'ThinK: keys without the channels that the last queries need least'"
    "snapkv_think think composition 'SnapKV, then ThinK over what it keeps'"
    # Entries with as many numbers as each token needs
    "dynakv_lr_energy low_rank compression 'each row with the smallest rank that keeps 95 % of its energy'"
    "dynakv_lr low_rank compression 'DynaKV token-wise: each row with the rank that a trained gate gives it'"
    "palu low_rank compression 'Palu: keys and values of a layer in a basis, one rank for all rows'"
    "matryoshka low_rank compression 'MatryoshkaKV: the same prefix of every row in a trained orthonormal basis'"
    "snapkv_layer_then_dynakv_lr low_rank composition 'SnapKV per layer, then ranks by trained gates'"
    "snapkv_layer_then_lr_energy low_rank composition 'SnapKV per layer, then ranks by energy'"
    "kvswap_lr low_rank composition 'KVSwap over rows with ranks by energy'"
    "flexgen_lr low_rank composition 'FlexGen over rows with ranks by energy'"
    "dynakv_head_lr low_rank composition 'DynaKV over rows with ranks by energy, per head'"
    "quest_head_lr low_rank composition 'Quest over rows with ranks by energy, per head'"
    # Other clusters
    "clusterkv clusterkv retrieval 'ClusterKV: k-means by cosine, decoded tokens clustered a window at a time'"
    "retroinfer retroinfer retrieval 'RetroInfer: clusters in segments, estimates for the next best'"
    "squeezed squeezed retrieval 'Squeezed Attention: clusters above a threshold of attention'"
    # KVSwap and what it compares with
    "kvswap kvswap retrieval demo 'KVSwap: groups of 4 tokens by low-rank keys, read a layer ahead'"
    "kvswap_softmax kvswap retrieval 'KVSwap with the soft-maxed scores of all query heads summed'"
    "flexgen flexgen retrieval 'FlexGen: everything is read, a layer ahead'"
    "infinigen infinigen retrieval 'InfiniGen: tokens of a head whose predicted score is within alpha of the best'"
    "infinigen_star infinigen retrieval 'InfiniGen with tokens of all heads together'"
    "infinigen_star_reuse infinigen retrieval 'InfiniGen* with what was read kept for later steps'"
    "shadowkv shadowkv retrieval 'ShadowKV: low-rank keys in memory, values of chosen chunks read'"
    "shadowkv_joint shadowkv retrieval 'ShadowKV with one choice for all heads of a layer'"
    # Pages, blocks and tokens with an index
    "quest quest retrieval demo 'Quest: pages of 16 by the box around their keys'"
    "quest_top_p quest retrieval 'Quest whose heads take pages until these hold 95 % of the attention'"
    "pqcache pqcache retrieval demo 'PQCache: tokens by product-quantised keys'"
    "loki loki retrieval 'Loki: tokens by the leading principal components of keys'"
    "loki_predicted loki retrieval 'Loki that chooses a layer ahead'"
    "specache specache retrieval 'SpeCache: tokens chosen by keys of 2 bits in memory, read one layer ahead'"
    "fasa sparq retrieval 'FASA: tokens by a few frequency pairs of RoPE'"
    "sparq sparq retrieval 'SparQ: tokens by the channels in which the query is largest'"
    "infllm infllm retrieval 'InfLLM: blocks of 8 by their most representative keys'"
    # Reference lines
    "no_cluster token_topk reference 'the best tokens by their exact scores, keys in memory'"
    "no_cluster_streamed token_topk reference 'the same, all keys read at every step'"
    "oracle token_topk reference 'the tokens with the most attention, keys in memory'"
    "random_units token_topk reference 'pages drawn at random'"
    "streaming_llm streaming eviction demo 'StreamingLLM: sinks and the latest, at positions inside the cache'"
    "sink_and_window streaming eviction 'sinks and the latest, at their own positions'"
    "window_only streaming eviction 'the latest alone'"
    "random_keep streaming reference 'entries kept at random'"
    "random_decoded streaming reference 'the prompt, and decoded entries kept at random'"
    # Eviction
    "snapkv_group snapkv eviction demo 'SnapKV: what the last queries of the prompt attend, per KV head'"
    "snapkv_qhead snapkv eviction 'SnapKV per query head'"
    "snapkv_layer snapkv eviction 'SnapKV with one choice per layer'"
    "expected_attention snapkv eviction 'Expected Attention: what future queries are expected to attend'"
    "expected_attention_heads dynamickv eviction 'Expected Attention, the heads of a layer compete'"
    "r_kv snapkv eviction 'R-KV: attention of the last queries, less likeness to other keys'"
    "pyramidkv dynamickv eviction 'PyramidKV: less with every layer'"
    "dynamickv dynamickv eviction 'DynamicKV: layers compete as they come in'"
    "dynamickv_qhead dynamickv eviction 'DynamicKV with a choice per query head'"
    "cake dynamickv eviction 'CAKE: each layer takes a share by its preference'"
    "compress_kv dynamickv eviction 'CompressKV: heads that retrieve vote, importance of layers found offline'"
    "duo_attention dynamickv eviction 'DuoAttention: heads that retrieve keep the prompt, the others its ends'"
    "adakv dynamickv eviction 'Ada-KV: the heads of a layer compete'"
    "defensivekv dynamickv eviction 'DefensiveKV: by the most that any query would lose, heads compete'"
    "layer_defensivekv dynamickv eviction 'DefensiveKV with the heads of all layers competing'"
    "defensivekv_mean dynamickv reference 'DefensiveKV with the mean loss in place of the worst case'"
    "defensivekv_max dynamickv reference 'DefensiveKV with the largest loss in the group, mean over queries'"
    "layer_defensivekv_mean dynamickv reference 'the same with the mean loss, heads of all layers competing'"
    "layer_defensivekv_max dynamickv reference 'the same with the largest loss in the group, heads of all layers competing'"
    "h2o heavy_hitters eviction demo 'H2O: what received the most attention so far'"
    "h2o_prefill_once heavy_hitters eviction 'H2O with the prompt thinned out once, at its end'"
    "tova heavy_hitters eviction 'TOVA: what the latest query attends'"
    "lazy_eviction heavy_hitters eviction 'LazyEviction: what has been silent for long leaves'"
    "mikv demoting composition 'MiKV: what received the most attention in f16, the rest in 2 bits'"
    "arkv demoting composition 'ARKV: in f16, as 8-bit floats or dropped, layers share by their attention'"
    "knorm query_free eviction 'Knorm: small keys stay'"
    "keydiff query_free eviction 'KeyDiff: keys unlike the others stay'"
    "lagkv query_free eviction 'LagKV: what stands out against the next block stays'"
    "d2o merging eviction 'D2O: what leaves is merged into similar entries, budgets by variance'"
    "kv_merger merging eviction 'KVMerger: similar neighbours are merged'"
    # Evicted from when the prompt ends, then retrieved from storage
    "snapkv_then_dynakv composed composition 'the prompt thinned out by SnapKV, the rest in DynaKV on storage'"
    "mpcache composed composition 'MPCache: thinned out, then boxes of 8 chosen by their bounds'"
    "mpcache_shared composed composition 'MPCache whose boxes are chosen for two layers at once'"
    # What to keep is learned, or said by the engine
    "trim_kv learned eviction 'TRIM-KV: a learned gate that decays with age'"
    "locret learned eviction 'Locret: a learned gate per entry'"
    "global_gates learned eviction 'Make Each Token Count: learned gates, all heads and layers compete'"
    "lookahead_probe engine_decides eviction 'DapQ and LookaheadKV: SnapKV by queries that stand for the future'"
    "external_mask engine_decides eviction 'the engine says what stays'")
