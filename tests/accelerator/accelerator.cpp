// An accelerator that computes nothing: two devices, of which each thread has one as its own, and pinned host memory.
// With it torch.accelerator and tensor.pin_memory() do on any machine what they do beside a GPU.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

constexpr c10::DeviceIndex DEVICES = 2;
constexpr size_t SMALLEST = 512;

thread_local c10::DeviceIndex current = 0;

c10::Device device(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

// As CUDA's caching host allocator: sizes are powers of two, and a block, once made, is kept for the next of its size.
struct PinnedAllocator : c10::Allocator {
  std::mutex mutex;
  std::map<const char*, size_t> blocks;
  std::map<size_t, std::vector<void*>> unused;
  size_t pinnings = 0;

  c10::DataPtr allocate(size_t wanted) override;

  void give_back(void* block) {
    std::lock_guard<std::mutex> guard(mutex);
    unused[blocks.at(static_cast<const char*>(block))].push_back(block);
  }

  bool owns(const void* pointer) {
    std::lock_guard<std::mutex> guard(mutex);
    const auto address = static_cast<const char*>(pointer);
    auto behind = blocks.upper_bound(address);
    return behind != blocks.begin() && address < std::prev(behind)->first + std::prev(behind)->second;
  }

  void copy_data(void* target, const void* source, size_t count) const override {
    std::memcpy(target, source, count);
  }
};

// Never destroyed: tensors may outlive everything else.
PinnedAllocator& pinned = *new PinnedAllocator;

c10::DataPtr PinnedAllocator::allocate(size_t wanted) {
  if (wanted == 0) {
    return {nullptr, c10::DeviceType::CPU};
  }
  size_t size = SMALLEST;
  while (size < wanted) {
    size *= 2;
  }
  std::lock_guard<std::mutex> guard(mutex);
  auto& kept = unused[size];
  void* block = nullptr;
  if (kept.empty()) {
    TORCH_CHECK(posix_memalign(&block, 4096, size) == 0, "no memory for a pinned block of ", size, " bytes");
    blocks.emplace(static_cast<const char*>(block), size);
  } else {
    block = kept.back();
    kept.pop_back();
  }
  ++pinnings;
  return {block, block, [](void* returned) { pinned.give_back(returned); }, c10::DeviceType::CPU};
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* pointer) const override { return pinned.owns(pointer); }
};

struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Device getDevice() const override { return device(current); }
  void uncheckedSetDevice(c10::Device wanted) const noexcept override { current = wanted.index(); }
  void setDevice(c10::Device wanted) const override {
    TORCH_CHECK(wanted.index() >= 0 && wanted.index() < DEVICES, "there is no device ", wanted);
    current = wanted.index();
  }
  c10::Device exchangeDevice(c10::Device wanted) const override {
    const auto before = getDevice();
    setDevice(wanted);
    return before;
  }
  c10::Stream getStream(c10::Device of) const override { return c10::Stream(c10::Stream::DEFAULT, of); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // A process forked while another thread pins would find the lock taken for ever.
  pthread_atfork([] { pinned.mutex.lock(); }, [] { pinned.mutex.unlock(); }, [] { pinned.mutex.unlock(); });
  return true;
}();

}  // namespace

extern "C" size_t blocks_made() { return pinned.blocks.size(); }
extern "C" size_t times_pinned() { return pinned.pinnings; }
