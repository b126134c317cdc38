// Memory, given away as CUDA's caching allocator gives it away; and pinned memory of the host.
#pragma once

#include "lanes.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>

namespace simulated {

constexpr size_t ROUND = 512;  // bytes: as CUDA's allocator, every block is a multiple
constexpr int LOUD = 0xff;     // a float of these bytes is NaN, an integer -1

// A block belongs to the stream that was current when it was allocated.
struct Block {
  void* data;
  size_t size;
  DeviceIndex device;
  int64_t stream;
  uint64_t number;                                  // in the order in which they were made
  bool stale;                                       // it was given away again, and nobody has touched it since
  std::set<std::pair<DeviceIndex, int64_t>> users;  // other streams that record_stream has named, of any device
};

// A freed block goes back to the pool of its stream at once: what is allocated there next is used behind what is in
// that stream now. If other streams were named, it goes back once they have done what was in them when it was freed.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Device device(SIMULATED, device_now);
    if (bytes == 0) {
      return {nullptr, nullptr, &give_back, device};
    }
    refuse_in_a_fork();
    size_t size = (bytes + ROUND - 1) / ROUND * ROUND;
    std::unique_lock lock(mutex_);
    collect();
    Block* block = take_from_pool(size);
    if (block == nullptr) {
      block = make(size, bytes, lock);
    }
    auto& stats = stats_[device_now];
    stats.allocated_bytes[0].increase(size);
    stats.active_bytes[0].increase(size);
    stats.allocation[0].increase(1);
    stats.active[0].increase(1);
    return {block->data, block, &give_back, device};
  }

  void recordStream(const c10::DataPtr& data, Stream stream) override {
    auto* block = static_cast<Block*>(data.get_context());
    if (block == nullptr || settings().forgets_record_stream) {
      return;
    }
    std::lock_guard lock(mutex_);
    std::pair user(stream.device_index(), stream.id());
    if (user != std::pair(block->device, block->stream)) {
      block->users.insert(user);
    }
  }

  // Say that a lane is about to use the memory. Who is the first to do so after it was given away again, finds NaN in it.
  // Not before: what was freed may still be read by a stream that this lane waits for.
  void touch(const c10::DataPtr& data, Lane& lane) {
    auto* block = static_cast<Block*>(data.get_context());
    if (block == nullptr) {
      return;
    }
    {
      std::lock_guard lock(mutex_);
      if (!block->stale) {
        return;
      }
      block->stale = false;
    }
    lane.put("empty", [memory = block->data, size = block->size](Lane&) { std::memset(memory, LOUD, size); });
  }

  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    int devices = device_count();
    for (int device = 0; device < devices; ++device) {
      synchronize_device(DeviceIndex(device));
    }
    std::lock_guard lock(mutex_);
    collect();
    for (int device = 0; device < devices; ++device) {
      give_back_pool(DeviceIndex(device));
    }
  }

  bool initialized() override {
    return true;
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    check_device(device);
    refuse_in_a_fork();
    std::lock_guard lock(mutex_);
    collect();
    return stats_[device];
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    check_device(device);
    refuse_in_a_fork();
    std::lock_guard lock(mutex_);
    for (auto* stat : stats_of(device)) {
      stat->reset_accumulated();
    }
  }

  void resetPeakStats(DeviceIndex device) override {
    check_device(device);
    refuse_in_a_fork();
    std::lock_guard lock(mutex_);
    collect();
    for (auto* stat : stats_of(device)) {
      stat->reset_peak();
    }
  }

  // Free and total bytes, as torch.cuda.mem_get_info.
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    check_device(device);
    refuse_in_a_fork();
    std::lock_guard lock(mutex_);
    return {capacity() - reserved(device), capacity()};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;  // memory is known by its block, not by its address
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void give_back(void* context);

  // Without a limit each device has what the host has. Without that one the host would look for it until it dies.
  static size_t capacity() {
    static const size_t of_the_host = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGE_SIZE));
    auto limit = size_t(settings().memory);
    return limit > 0 ? limit : of_the_host;
  }

  size_t reserved(DeviceIndex device) {
    return size_t(stats_[device].reserved_bytes[0].current);
  }

  std::vector<c10::CachingDeviceAllocator::Stat*> stats_of(DeviceIndex device) {
    auto& stats = stats_[device];
    return {&stats.allocated_bytes[0], &stats.active_bytes[0], &stats.reserved_bytes[0],
            &stats.allocation[0],      &stats.active[0],       &stats.segment[0]};
  }

  Block* take_from_pool(size_t size) {
    auto& free = pool_[{device_now, stream_now[device_now], size}];
    if (free.empty()) {
      return nullptr;
    }
    // Of several the one that was made first, as CUDA takes the one with the lowest address.
    Block* block = free.begin()->second;
    free.erase(free.begin());
    block->stale = true;
    return block;
  }

  bool fits(size_t size) {
    return reserved(device_now) + size <= capacity();
  }

  // Take new memory. If the device is full, the cache is given back first, which means to wait for the device.
  Block* make(size_t size, size_t asked, std::unique_lock<std::mutex>& lock) {
    if (!fits(size)) {
      stats_[device_now].num_alloc_retries += 1;
      lock.unlock();
      synchronize_device(device_now);
      lock.lock();
      collect();
      give_back_pool(device_now);
    }
    if (!fits(size)) {
      stats_[device_now].num_ooms += 1;
      refuse(asked);
    }
    void* data = std::aligned_alloc(ROUND, size);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "the host has no ", size, " bytes for simgpu:", int(device_now));
    std::memset(data, LOUD, size);
    stats_[device_now].reserved_bytes[0].increase(size);
    stats_[device_now].segment[0].increase(1);
    return new Block{data, size, device_now, stream_now[device_now], made_++, false, {}};
  }

  [[noreturn]] void refuse(size_t asked) {
    size_t limit = capacity();
    auto allocated = size_t(stats_[device_now].allocated_bytes[0].current);
    size_t held = reserved(device_now);
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "simgpu out of memory. Tried to allocate ", in_words(asked), ". Simulated GPU ",
        int(device_now), " has a total capacity of ", in_words(limit), " of which ", in_words(limit - held),
        " is free. ", in_words(allocated), " is allocated by PyTorch, and ", in_words(held - allocated),
        " is reserved by PyTorch but unallocated.");
  }

  static std::string in_words(size_t bytes) {
    char text[32];
    if (bytes >= size_t(1) << 30) {
      std::snprintf(text, sizeof text, "%.2f GiB", double(bytes) / double(1 << 30));
    } else if (bytes >= size_t(1) << 20) {
      std::snprintf(text, sizeof text, "%.2f MiB", double(bytes) / double(1 << 20));
    } else if (bytes >= size_t(1) << 10) {
      std::snprintf(text, sizeof text, "%.2f KiB", double(bytes) / double(1 << 10));
    } else {
      std::snprintf(text, sizeof text, "%zu bytes", bytes);
    }
    return text;
  }

  void free(Block* block) {
    if (forked) {  // the parent's memory: it may be locked for ever here, and it ends with the process
      return;
    }
    std::lock_guard lock(mutex_);
    stats_[block->device].allocated_bytes[0].decrease(block->size);
    stats_[block->device].allocation[0].decrease(1);
    if (block->users.empty()) {
      release(block);
      return;
    }
    std::vector<EventPointer> events;
    for (auto& [device, stream] : block->users) {
      events.push_back(lane(device, stream).record());
    }
    block->users.clear();
    waiting_.emplace_back(block, std::move(events));
  }

  // Put a block into its pool.
  void release(Block* block) {
    stats_[block->device].active_bytes[0].decrease(block->size);
    stats_[block->device].active[0].decrease(1);
    pool_[{block->device, block->stream, block->size}].emplace(block->number, block);
  }

  // Release the blocks whose users are done.
  void collect() {
    std::erase_if(waiting_, [this](auto& entry) {
      auto& [block, events] = entry;
      bool done = std::all_of(events.begin(), events.end(), [](auto& event) { return event->has_happened(); });
      if (done) {
        release(block);
      }
      return done;
    });
  }

  // Give all cached memory of a device back to the host. Its streams must be idle, but for the NaN that `release` puts.
  void give_back_pool(DeviceIndex device) {
    for (auto& [key, blocks] : pool_) {
      if (std::get<0>(key) != device) {
        continue;
      }
      for (auto& [number, block] : blocks) {
        stats_[device].reserved_bytes[0].decrease(block->size);
        stats_[device].segment[0].decrease(1);
        // Behind what its stream still has to write there.
        void* data = block->data;
        lane(device, block->stream).put("give back", [data](Lane&) { std::free(data); });
        delete block;
      }
      blocks.clear();
    }
  }

  std::mutex mutex_;
  uint64_t made_ = 0;
  std::map<std::tuple<DeviceIndex, int64_t, size_t>, std::map<uint64_t, Block*>> pool_;
  std::vector<std::pair<Block*, std::vector<EventPointer>>> waiting_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, MOST_DEVICES> stats_;
};

inline DeviceAllocator& device_allocator() {
  static auto* it = new DeviceAllocator;
  return *it;
}

inline void DeviceAllocator::give_back(void* context) {
  if (context != nullptr) {
    device_allocator().free(static_cast<Block*>(context));
  }
}

// Let a storage have so many bytes. What it holds is copied in the order of the current stream, as whatever is computed.
inline void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator().allocate(bytes);
  size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    Lane& lane = current_lane(storage.device().index());
    device_allocator().touch(storage.data_ptr(), lane);
    device_allocator().touch(data, lane);
    lane.put("resize", [to = data.get(), from = storage.data(), kept](Lane&) { std::memcpy(to, from, kept); });
  }
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

// Pinned memory of the host. A copy that is under way holds the storage itself, so nothing has to be recorded.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &give_back, at::kCPU};
    }
    refuse_in_a_fork();
    constexpr size_t LINE = 64;
    auto* data = static_cast<char*>(std::aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE));
    TORCH_CHECK(data != nullptr, "the host has no ", bytes, " bytes for pinned memory");
    std::lock_guard lock(mutex_);
    known_[data] = bytes;
    return {data, data, &give_back, at::kCPU};
  }

  bool holds(const void* address) {
    if (forked) {
      return false;
    }
    std::lock_guard lock(mutex_);
    auto next = known_.upper_bound(static_cast<const char*>(address));
    if (next == known_.begin()) {
      return false;
    }
    auto& [first, bytes] = *--next;
    return static_cast<const char*>(address) < first + bytes;
  }

  bool record_event(void*, void*, Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  c10::DeleterFnPtr raw_deleter() const override {
    return &give_back;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void give_back(void* data);

  std::mutex mutex_;
  std::map<const char*, size_t> known_;
};

inline PinnedAllocator& pinned_allocator() {
  static auto* it = new PinnedAllocator;
  return *it;
}

inline void PinnedAllocator::give_back(void* data) {
  if (data == nullptr || forked) {
    return;
  }
  {
    std::lock_guard lock(pinned_allocator().mutex_);
    pinned_allocator().known_.erase(static_cast<char*>(data));
  }
  std::free(data);
}

}  // namespace simulated
