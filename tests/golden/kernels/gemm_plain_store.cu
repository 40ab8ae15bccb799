// gemm m=77 n=263 k=272 consumers=1 tile_n=16 stages=4 tma_store=False persistent=False
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(uint32_t __addr, uint32_t __tx_count) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :  : "r"(__addr), "r"(__tx_count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_prefetch_tensormap(const void* __addr) {
  asm volatile("prefetch.tensormap [%0];" :  : "l"(__addr) : "memory");
}

__forceinline__ __device__ unsigned int tvm_builtin_cuda_cvta_generic_to_shared(void* p) {
    return __cvta_generic_to_shared(p);
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_init_init_shared_b64(uint32_t __addr, uint32_t __count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :  : "r"(__addr), "r"(__count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(uint32_t __dst_mem, const void* __tmap, int32_t __coords0, int32_t __coords1, uint32_t __mbar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :  : "r"(__dst_mem), "l"(__tmap), "r"(__coords0), "r"(__coords1), "r"(__mbar) : "memory");
}

__forceinline__ __device__ void sync_threads_of(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

__forceinline__ __device__ void tvm_builtin_cuda_cta_sync() {
    __syncthreads();
}

__forceinline__ __device__ void tvmopt_wait_for_kernel_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n16k16_f32_f16_f16_1_1_0_0(float& __d0, float& __d1, float& __d2, float& __d3, float& __d4, float& __d5, float& __d6, float& __d7, uint64_t __a_desc, uint64_t __b_desc, uint32_t __scale_d) {
  asm volatile("{ .reg .pred ps0; setp.ne.b32 ps0, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, ps0, 1, 1, 0, 0; }" : "+f"(__d0), "+f"(__d1), "+f"(__d2), "+f"(__d3), "+f"(__d4), "+f"(__d5), "+f"(__d6), "+f"(__d7) : "l"(__a_desc), "l"(__b_desc), "r"(__scale_d));
}

__forceinline__ __device__ void copy_4(void* to, const void* from) {
  unsigned int value = *(const unsigned int*)from;
  __builtin_memcpy(to, &value, 4);
}
__forceinline__ __device__ void store_pair_float32(void* p, float a, float b) { *(float2*)p = make_float2(a, b); }
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(uint32_t __addr, uint32_t __count, uint32_t __pred) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p mbarrier.arrive.shared.b64 _, [%0], %1; }" :  : "r"(__addr), "r"(__count), "r"(__pred) : "memory");
}

__forceinline__ __device__ bool elect_one() {
  unsigned one;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.b32 %0, 1, 0, p;\n"
               "}" : "=r"(one));
  return one != 0;
}

__forceinline__ __device__ void tvm_builtin_cuda_mbarrier_wait(void* barrier, int phase) {
    unsigned int barrier_addr_int = __cvta_generic_to_shared(barrier);
    unsigned int ticks = 0x989680;
    asm volatile(
        "{\n"
        ".reg .pred                P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [%0], %1, %2;\n"
        "@P1                       bra.uni DONE;\n"
        "bra.uni                   LAB_WAIT;\n"
        "DONE:\n"
        "}\n"
        :: "r"(barrier_addr_int), "r"(phase), "r"(ticks) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_fence_fence_sync_aligned() {
  asm volatile("wgmma.fence.sync.aligned;" :  :  : "memory");
}

__forceinline__ __device__ void ptx_wgmma_encode_matrix_descriptor(uint64_t* desc, void* addr, int ldo, int sdo, int swizzle) {
  GmmaDescriptor _desc{};  // value-init: reading uncovered pad bits is UB

  switch (swizzle) {
    case 0: _desc.bitfield.layout_type_ = uint8_t(0); break; // No swizzle
    case 1: _desc.bitfield.layout_type_ = uint8_t(3); break; // 32B swizzle
    case 2: _desc.bitfield.layout_type_ = uint8_t(2); break; // 64B swizzle
    case 3: _desc.bitfield.layout_type_ = uint8_t(1); break; // 128B swizzle
  }

  uint32_t start_address = __cvta_generic_to_shared(addr);
  _desc.bitfield.start_address_ = static_cast<uint16_t>(start_address >> 4);

  constexpr uint8_t base_offset = 0;
  _desc.bitfield.base_offset_ = base_offset;

  _desc.bitfield.stride_byte_offset_  = static_cast<uint32_t>(sdo);
  _desc.bitfield.leading_byte_offset_ = static_cast<uint32_t>(ldo);

  *desc = (uint64_t)_desc;
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned() {
  asm volatile("wgmma.commit_group.sync.aligned;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" :  :  : "memory");
}
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2, const __grid_constant__ CUtensorMap v_3, half* __restrict__ _ptr);
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2, const __grid_constant__ CUtensorMap v_3, half* __restrict__ _ptr) {
  int warp_id_in_cta = __shfl_sync((uint)4294967295, (((int)threadIdx.x) >> 5), 0, 32);
  int v_4 = ((int)blockIdx.x);
  int cse_v1 = (warp_id_in_cta >> 2);
  int v_5 = (warp_id_in_cta >> 2);
  int cse_v2 = (warp_id_in_cta & 3);
  int v_6 = (warp_id_in_cta & 3);
  int cse_v3 = (((int)threadIdx.x) & 31);
  int v_7 = (((int)threadIdx.x) & 31);
  int cse_v4 = (((int)threadIdx.x) & 127);
  int v_8 = (((int)threadIdx.x) & 127);
  ((int)blockIdx.x);
  (warp_id_in_cta >> 2);
  (warp_id_in_cta & 3);
  (((int)threadIdx.x) & 31);
  (((int)threadIdx.x) & 127);
  extern __shared__ __align__(64) uchar _ptr_1[];
  if (warp_id_in_cta < 4) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_1)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_2)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_3)))));
      }
    }
  }
  if ((warp_id_in_cta >> 2) == 1) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5120]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5121]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5122]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5123]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5124]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5125]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5126]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[5127]))), (uint)1);
      }
    }
  }
  tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster();
  tvm_builtin_cuda_cta_sync();
  tvmopt_wait_for_kernel_before();
  alignas(64) int _ptr_2[1];
  _ptr_2[0] = 0;
  alignas(64) int _ptr_3[1];
  _ptr_3[0] = 0;
  int cse_v5 = (((int)blockIdx.x) % 2);
  int cse_v6 = (((int)blockIdx.x) / 2);
  if (warp_id_in_cta < 4) {
    alignas(64) float _ptr_4[8];
    alignas(64) uint64_t _ptr_5[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_5[0])), (&(((half*)_ptr_1)[0])), 1, 64, 3);
    alignas(64) uint64_t _ptr_6[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_6[0])), (&(((half*)_ptr_1)[16384])), 1, 64, 3);
    alignas(64) int _ptr_7[1];
    _ptr_7[0] = (((int)blockIdx.x) % 2);
    alignas(64) int _ptr_8[1];
    _ptr_8[0] = (((int)blockIdx.x) / 2);
    alignas(64) int _ptr_9[1];
    _ptr_9[0] = (_ptr_7[0] * 64);
    alignas(64) int _ptr_10[1];
    _ptr_10[0] = (_ptr_8[0] * 16);
    for (int v_9 = 0; v_9 < 5; ++v_9) {
      tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)])), _ptr_3[0]);
      tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
      int cse_v8 = ((warp_id_in_cta >> 2) * 512);
              uint64_t v_ = _ptr_5[0];
              uint64_t v__1 = _ptr_5[0];
            uint2 v__2 = make_uint2((((*(uint2 *)(&(v_)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__1)))).y);
          uint64_t v__3 = *(uint64_t *)(&(v__2));
              uint64_t v__4 = _ptr_5[0];
              uint64_t v__5 = _ptr_5[0];
            uint2 v__6 = make_uint2((((*(uint2 *)(&(v__4)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__5)))).y);
          uint64_t v__7 = *(uint64_t *)(&(v__6));
        uint2 v__8 = make_uint2(((*(uint2 *)(&(v__3)))).x, ((*(uint2 *)(&(v__7)))).y);
              uint64_t v__9 = _ptr_6[0];
              uint64_t v__10 = _ptr_6[0];
            uint2 v__11 = make_uint2((((*(uint2 *)(&(v__9)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__10)))).y);
          uint64_t v__12 = *(uint64_t *)(&(v__11));
              uint64_t v__13 = _ptr_6[0];
              uint64_t v__14 = _ptr_6[0];
            uint2 v__15 = make_uint2((((*(uint2 *)(&(v__13)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__14)))).y);
          uint64_t v__16 = *(uint64_t *)(&(v__15));
        uint2 v__17 = make_uint2(((*(uint2 *)(&(v__12)))).x, ((*(uint2 *)(&(v__16)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n16k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], (*(uint64_t *)(&(v__8))), (*(uint64_t *)(&(v__17))), (0 < v_9));
              uint64_t v__18 = _ptr_5[0];
              uint64_t v__19 = _ptr_5[0];
            uint2 v__20 = make_uint2((((*(uint2 *)(&(v__18)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__19)))).y);
          uint64_t v__21 = *(uint64_t *)(&(v__20));
              uint64_t v__22 = _ptr_5[0];
              uint64_t v__23 = _ptr_5[0];
            uint2 v__24 = make_uint2((((*(uint2 *)(&(v__22)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__23)))).y);
          uint64_t v__25 = *(uint64_t *)(&(v__24));
        uint2 v__26 = make_uint2((((*(uint2 *)(&(v__21)))).x + (uint)2), ((*(uint2 *)(&(v__25)))).y);
              uint64_t v__27 = _ptr_6[0];
              uint64_t v__28 = _ptr_6[0];
            uint2 v__29 = make_uint2((((*(uint2 *)(&(v__27)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__28)))).y);
          uint64_t v__30 = *(uint64_t *)(&(v__29));
              uint64_t v__31 = _ptr_6[0];
              uint64_t v__32 = _ptr_6[0];
            uint2 v__33 = make_uint2((((*(uint2 *)(&(v__31)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__32)))).y);
          uint64_t v__34 = *(uint64_t *)(&(v__33));
        uint2 v__35 = make_uint2((((*(uint2 *)(&(v__30)))).x + (uint)2), ((*(uint2 *)(&(v__34)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n16k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], (*(uint64_t *)(&(v__26))), (*(uint64_t *)(&(v__35))), (uint)1);
              uint64_t v__36 = _ptr_5[0];
              uint64_t v__37 = _ptr_5[0];
            uint2 v__38 = make_uint2((((*(uint2 *)(&(v__36)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__37)))).y);
          uint64_t v__39 = *(uint64_t *)(&(v__38));
              uint64_t v__40 = _ptr_5[0];
              uint64_t v__41 = _ptr_5[0];
            uint2 v__42 = make_uint2((((*(uint2 *)(&(v__40)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__41)))).y);
          uint64_t v__43 = *(uint64_t *)(&(v__42));
        uint2 v__44 = make_uint2((((*(uint2 *)(&(v__39)))).x + (uint)4), ((*(uint2 *)(&(v__43)))).y);
              uint64_t v__45 = _ptr_6[0];
              uint64_t v__46 = _ptr_6[0];
            uint2 v__47 = make_uint2((((*(uint2 *)(&(v__45)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__46)))).y);
          uint64_t v__48 = *(uint64_t *)(&(v__47));
              uint64_t v__49 = _ptr_6[0];
              uint64_t v__50 = _ptr_6[0];
            uint2 v__51 = make_uint2((((*(uint2 *)(&(v__49)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__50)))).y);
          uint64_t v__52 = *(uint64_t *)(&(v__51));
        uint2 v__53 = make_uint2((((*(uint2 *)(&(v__48)))).x + (uint)4), ((*(uint2 *)(&(v__52)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n16k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], (*(uint64_t *)(&(v__44))), (*(uint64_t *)(&(v__53))), (uint)1);
              uint64_t v__54 = _ptr_5[0];
              uint64_t v__55 = _ptr_5[0];
            uint2 v__56 = make_uint2((((*(uint2 *)(&(v__54)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__55)))).y);
          uint64_t v__57 = *(uint64_t *)(&(v__56));
              uint64_t v__58 = _ptr_5[0];
              uint64_t v__59 = _ptr_5[0];
            uint2 v__60 = make_uint2((((*(uint2 *)(&(v__58)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__59)))).y);
          uint64_t v__61 = *(uint64_t *)(&(v__60));
        uint2 v__62 = make_uint2((((*(uint2 *)(&(v__57)))).x + (uint)6), ((*(uint2 *)(&(v__61)))).y);
              uint64_t v__63 = _ptr_6[0];
              uint64_t v__64 = _ptr_6[0];
            uint2 v__65 = make_uint2((((*(uint2 *)(&(v__63)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__64)))).y);
          uint64_t v__66 = *(uint64_t *)(&(v__65));
              uint64_t v__67 = _ptr_6[0];
              uint64_t v__68 = _ptr_6[0];
            uint2 v__69 = make_uint2((((*(uint2 *)(&(v__67)))).x + ((uint)(_ptr_2[0] * 128))), ((*(uint2 *)(&(v__68)))).y);
          uint64_t v__70 = *(uint64_t *)(&(v__69));
        uint2 v__71 = make_uint2((((*(uint2 *)(&(v__66)))).x + (uint)6), ((*(uint2 *)(&(v__70)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n16k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], (*(uint64_t *)(&(v__62))), (*(uint64_t *)(&(v__71))), (uint)1);
      tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1();
      if (1 <= v_9) {
        tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(((_ptr_2[0] < 1) ? (_ptr_2[0] + 3) : (_ptr_2[0] - 1)) + 5124)]))), (uint)1, ((((int)threadIdx.x) & 127) < 1));
      }
      _ptr_2[0] = (_ptr_2[0] + 1);
      if (4 <= _ptr_2[0]) {
        _ptr_2[0] = 0;
        _ptr_3[0] = (_ptr_3[0] ^ 1);
      }
    }
    tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
    tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(((_ptr_2[0] < 1) ? (_ptr_2[0] + 3) : (_ptr_2[0] - 1)) + 5124)]))), (uint)1, ((((int)threadIdx.x) & 127) < 1));
    sync_threads_of(8, 128);
    int cse_v11 = (((warp_id_in_cta * 384) + (((((int)threadIdx.x) & 31) / 4) * 24)) + (((((int)threadIdx.x) & 31) % 4) * 2));
    store_pair_float32((&(((float*)_ptr_1)[(((warp_id_in_cta * 384) + (((((int)threadIdx.x) & 31) / 4) * 24)) + (((((int)threadIdx.x) & 31) % 4) * 2))])), _ptr_4[0], _ptr_4[1]);
    store_pair_float32((&(((float*)_ptr_1)[((((warp_id_in_cta * 384) + (((((int)threadIdx.x) & 31) / 4) * 24)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 192)])), _ptr_4[2], _ptr_4[3]);
    store_pair_float32((&(((float*)_ptr_1)[((((warp_id_in_cta * 384) + (((((int)threadIdx.x) & 31) / 4) * 24)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 8)])), _ptr_4[4], _ptr_4[5]);
    store_pair_float32((&(((float*)_ptr_1)[((((warp_id_in_cta * 384) + (((((int)threadIdx.x) & 31) / 4) * 24)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 200)])), _ptr_4[6], _ptr_4[7]);
    sync_threads_of(8, 128);
    int cse_v9 = ((warp_id_in_cta >> 2) * 128);
    int v_10 = (((warp_id_in_cta >> 2) * 128) + (((int)threadIdx.x) & 127));
    for (int v_11 = 0; v_11 < 2; ++v_11) {
      int cse_v10 = (((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127));
      int v_12 = (((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127));
      int v_13 = (((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127));
      int cse_v12 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) / 16);
      int v_14 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) / 16);
      int cse_v13 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) % 16);
      int v_15 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) % 16);
      alignas(64) float _ptr_11[1];
      copy_4((&(_ptr_11[0])), (&(((float*)_ptr_1)[((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) / 16) * 24) + ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) % 16))])));
      int v_16 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) / 16) + _ptr_9[0]);
      int v_17 = (_ptr_10[0] + ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) % 16));
      int cse_v14 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128);
      int v_18 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128);
      int cse_v17 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) / 16);
      int v_19 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) / 16);
      int cse_v18 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) % 16);
      int v_20 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) % 16);
      alignas(64) float _ptr_12[1];
      copy_4((&(_ptr_12[0])), (&(((float*)_ptr_1)[(((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) / 16) * 24) + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) % 16))])));
      int v_21 = ((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) / 16) + _ptr_9[0]);
      int v_22 = (_ptr_10[0] + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 128) % 16));
      int cse_v15 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256);
      int v_23 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256);
      int cse_v19 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) / 16);
      int v_24 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) / 16);
      int cse_v20 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) % 16);
      int v_25 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) % 16);
      alignas(64) float _ptr_13[1];
      copy_4((&(_ptr_13[0])), (&(((float*)_ptr_1)[(((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) / 16) * 24) + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) % 16))])));
      int v_26 = ((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) / 16) + _ptr_9[0]);
      int v_27 = (_ptr_10[0] + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 256) % 16));
      int cse_v16 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384);
      int v_28 = ((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384);
      int cse_v21 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) / 16);
      int v_29 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) / 16);
      int cse_v22 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) % 16);
      int v_30 = (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) % 16);
      alignas(64) float _ptr_14[1];
      copy_4((&(_ptr_14[0])), (&(((float*)_ptr_1)[(((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) / 16) * 24) + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) % 16))])));
      int v_31 = ((((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) / 16) + _ptr_9[0]);
      int v_32 = (_ptr_10[0] + (((((v_11 * 512) + ((warp_id_in_cta >> 2) * 128)) + (((int)threadIdx.x) & 127)) + 384) % 16));
      if ((v_16 < 77) && (v_17 < 263)) {
        _ptr[((v_16 * 263) + v_17)] = ((half)_ptr_11[0]);
      }
      if ((v_21 < 77) && (v_22 < 263)) {
        _ptr[((v_21 * 263) + v_22)] = ((half)_ptr_12[0]);
      }
      if ((v_26 < 77) && (v_27 < 263)) {
        _ptr[((v_26 * 263) + v_27)] = ((half)_ptr_13[0]);
      }
      if ((v_31 < 77) && (v_32 < 263)) {
        _ptr[((v_31 * 263) + v_32)] = ((half)_ptr_14[0]);
      }
    }
  } else {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        alignas(64) int _ptr_15[1];
        _ptr_15[0] = (((int)blockIdx.x) % 2);
        alignas(64) int _ptr_16[1];
        _ptr_16[0] = (((int)blockIdx.x) / 2);
        alignas(64) int _ptr_17[1];
        _ptr_17[0] = (_ptr_15[0] * 64);
        alignas(64) int _ptr_18[1];
        _ptr_18[0] = (_ptr_16[0] * 16);
        alignas(64) int _ptr_19[1];
        _ptr_19[0] = ((10240 - ((_ptr_17[0] <= 13) ? 0 : 6528)) - ((_ptr_18[0] <= 247) ? 0 : 1152));
        for (int v_33 = 0; v_33 < 5; ++v_33) {
          tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5124)])), (_ptr_3[0] ^ 1));
          tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)]))), ((uint)_ptr_19[0]));
          int cse_v7 = (v_33 * 64);
          if (_ptr_17[0] <= 13) {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[(_ptr_2[0] * 4096)]))), ((void*)((unsigned long long)(&(v_1)))), (v_33 * 64), _ptr_17[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)]))));
          } else {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[(_ptr_2[0] * 4096)]))), ((void*)((unsigned long long)(&(v)))), (v_33 * 64), _ptr_17[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)]))));
          }
          if (_ptr_18[0] <= 247) {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((_ptr_2[0] * 1024) + 16384)]))), ((void*)((unsigned long long)(&(v_3)))), (v_33 * 64), _ptr_18[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)]))));
          } else {
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((_ptr_2[0] * 1024) + 16384)]))), ((void*)((unsigned long long)(&(v_2)))), (v_33 * 64), _ptr_18[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 5120)]))));
          }
          _ptr_2[0] = (_ptr_2[0] + 1);
          if (4 <= _ptr_2[0]) {
            _ptr_2[0] = 0;
            _ptr_3[0] = (_ptr_3[0] ^ 1);
          }
        }
      }
    }
  }
}

