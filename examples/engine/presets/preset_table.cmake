# The presets that the programs can choose by name: one line each. The line becomes a translation unit of its own and an
# entry of the registry. `demo` marks the ten that KVTL_PRESETS=demo builds.
#   name  header in kvtl/presets/  [demo]
set(KVTL_PRESET_TABLE
    "full full demo"
    # DynaKV, its ablations and its estimate
    "dynakv dynakv demo"
    "dynakv_static dynakv demo"
    "dynakv_sequence_order dynakv"
    "dynakv_unit_contiguous dynakv"
    "dynakv_lru dynakv"
    "dynakv_estimate estimate demo"
    # Entries as signed bytes
    "full_int8 int8"
    "snapkv_int8 int8"
    "dynakv_int8 int8"
    "kvswap_int8 int8"
    # Entries with as many numbers as each token needs
    "dynakv_lr_energy low_rank"
    "palu low_rank"
    "kvswap_lr low_rank"
    "flexgen_lr low_rank"
    "dynakv_head_lr low_rank"
    "quest_head_lr low_rank"
    # Other clusters
    "clusterkv clusterkv"
    "retroinfer retroinfer"
    "squeezed squeezed"
    # KVSwap and what it compares with
    "kvswap kvswap demo"
    "flexgen flexgen"
    "infinigen infinigen"
    "infinigen_star infinigen"
    "infinigen_star_reuse infinigen"
    "shadowkv shadowkv"
    # Pages, blocks and tokens with an index
    "quest quest demo"
    "pqcache pqcache demo"
    "loki loki"
    "fasa sparq"
    "sparq sparq"
    "infllm infllm"
    # Reference lines
    "no_cluster token_topk"
    "no_cluster_streamed token_topk"
    "oracle token_topk"
    "random_units token_topk"
    "streaming_llm streaming demo"
    "sink_and_window streaming"
    "window_only streaming"
    "random_keep streaming"
    # Eviction
    "snapkv_group snapkv demo"
    "snapkv_qhead snapkv"
    "pyramidkv dynamickv"
    "dynamickv dynamickv"
    "cake dynamickv"
    "compress_kv dynamickv"
    "adakv dynamickv"
    "defensivekv dynamickv"
    "layer_defensivekv dynamickv"
    "h2o heavy_hitters demo"
    "h2o_prefill_once heavy_hitters"
    "tova heavy_hitters"
    "lazy_eviction heavy_hitters"
    "knorm query_free"
    "keydiff query_free"
    "lagkv query_free"
    "d2o merging"
    "kv_merger merging"
    # Evicted from when the prompt ends, then retrieved from storage
    "snapkv_then_dynakv composed"
    "mpcache composed"
    # What to keep is learned, or said by the engine
    "trim_kv learned"
    "locret learned"
    "global_gates learned"
    "lookahead_probe engine_decides"
    "external_mask engine_decides")
