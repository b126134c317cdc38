// Streams and events: a stream is a lane, a thread that does its tasks in order, on a clock of its own.
#pragma once

#include "records.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

namespace simulated {

using c10::Stream;

// ---- events

// What a stream records and another one waits for. It may be recorded again and again: a wait means the last record
// before it, so records are numbered.
class Event {
 public:
  uint64_t ask() {
    std::lock_guard lock(mutex_);
    return ++asked_;
  }

  uint64_t asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

  void happen(uint64_t number, Time time) {
    {
      std::lock_guard lock(mutex_);
      done_ = std::max(done_, number);
      time_ = time;
    }
    changed_.notify_all();
  }

  Time wait(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
    return time_;
  }

  bool has_happened() {
    std::lock_guard lock(mutex_);
    return done_ >= asked_;
  }

  Time time() {
    std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0;
  uint64_t done_ = 0;
  Time time_;
};

using EventPointer = std::shared_ptr<Event>;

inline Seconds cpu_time_of_this_thread() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return Seconds(double(used.tv_sec) + 1e-9 * double(used.tv_nsec));
}

inline void sleep_until(Time time) {
  if (time > Clock::now()) {
    std::unique_lock lock(ending().mutex);
    ending().changed.wait_until(lock, time, [] { return ending().now; });
  }
}

// Add what may be a fraction of a tick to a point in time.
inline Time later(Time time, Seconds seconds) {
  return time + std::chrono::duration_cast<Clock::duration>(seconds);
}

// A copy engine does one copy at a time, whichever stream it belongs to.
struct Engine {
  std::mutex mutex;
  Time free;
};

// Who waits gives Python's lock away, if it has it: another thread goes on, and so does a lane whose kernel is written in
// Python. The functions are looked for where they are: this library is not linked against Python.
//
// A daemon thread may still wait when the process ends, which lets all lanes finish at once. Python up to 3.13 ends a
// thread that asks for its lock then by an unwinding that no destructor lets through, ours or the one with which torch
// takes back the lock that it gave away before it called us: the whole process would abort. Such a thread stays here.
// How long the end takes nobody knows (an object may be slow to go), so it stays until the process is gone.
class WithoutPython {
 public:
  WithoutPython() {
    static auto* holds = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    static auto* give_away = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
    if (holds != nullptr && give_away != nullptr && holds() == 1) {
      thread_ = give_away();
    }
  }

  ~WithoutPython() {
    static auto* take = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
    if (ending().at_once() && !is_main_thread()) {
      stay();
    }
    if (thread_ == nullptr) {
      return;
    }
    try {
      take(thread_);
    } catch (...) {  // an unwinding that must not be swallowed: go no further
      stay_for_ever();
    }
  }

  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  static bool is_main_thread() {
#ifdef __APPLE__
    return pthread_main_np() != 0;
#else
    return getpid() == syscall(SYS_gettid);
#endif
  }

  // Stay until the process is gone; but as long as Python still runs, what was told of its end before us (atexit) may
  // join this thread, and that must not wait for ever.
  static void stay() {
    Time patience = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < patience) {
      if (python_ends()) {
        stay_for_ever();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // Does Python end threads that ask for its lock? The function had an underscore before 3.13.
  static bool python_ends() {
    static auto* ends = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsFinalizing"));
    static auto* before = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
    auto* ask = ends != nullptr ? ends : before;
    return ask != nullptr && ask() != 0;
  }

  [[noreturn]] static void stay_for_ever() {
    while (true) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

  void* thread_ = nullptr;
};

// ---- lanes

class Lane {
 public:
  using Task = std::function<void(Lane&)>;

  Lane(DeviceIndex device, int64_t stream) : device_(device), stream_(stream) {
    // Several streams share the cores, so each kernel gets one. at::set_num_threads also writes what *new* threads
    // start with: give that back. One lane after the other, or one would give back what another has written.
    static std::mutex one_after_the_other;
    std::lock_guard turn(one_after_the_other);
    int threads = at::get_num_threads();
    std::thread([this] { live(); }).detach();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return started_; });
    at::set_num_threads(threads);
  }

  // Put a task behind those that are there. The label is what an error in it is told with.
  void put(std::string label, Task task) {
    refuse_in_a_fork();
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back({std::move(label), std::move(task), Clock::now()});
      ++put_;
    }
    changed_.notify_all();
  }

  bool idle() {
    std::lock_guard lock(mutex_);
    return done_ == put_;
  }

  void record(const EventPointer& event) {
    uint64_t number = event->ask();
    put("record", [event, number](Lane& lane) { event->happen(number, lane.now()); });
  }

  EventPointer record() {
    auto event = std::make_shared<Event>();
    record(event);
    return event;
  }

  // Let what comes later in this lane wait until the event, as it was last recorded, has happened.
  void follow(const EventPointer& event) {
    uint64_t number = event->asked();
    if (number == 0) {  // never recorded: nothing to wait for, as on CUDA
      return;
    }
    put("wait", [event, number](Lane& lane) {
      Time start = lane.now();
      Time happened = event->wait(number);
      if (happened > start) {
        lane.free_ = happened;
        profile().add({lane.device_, lane.stream_, "wait", "wait", start, happened});
      }
    });
  }

  // Let the caller wait until all that is in the lane now is done; raises what has failed on its device.
  void synchronize() {
    refuse_in_a_fork();
    WithoutPython let_others_run;
    {
      std::unique_lock lock(mutex_);
      uint64_t last = put_;
      changed_.wait(lock, [&] { return done_ >= last; });
    }
    raise_error_of(device_);
  }

  // Do `work`, which takes `modelled` time: as long as the CPU needs if that is longer, or if `modelled` is 0. Memory is
  // read and written at the end of that time: who is too early finds what was there before. For the lane's thread.
  void spend(const std::string& kind, const std::string& label, Seconds modelled, const std::function<void()>& work,
             Engine* engine = nullptr) {
    Time start = now();
    if (engine != nullptr) {
      std::lock_guard lock(engine->mutex);
      start = std::max(start, engine->free);
      engine->free = later(start, modelled);
    }
    Time end = later(start, modelled);
    Seconds& usual = usual_[label];  // what the CPU needed for it the last time
    sleep_until(later(end, -usual));
    Seconds before = cpu_time_of_this_thread();
    work();
    Seconds used = cpu_time_of_this_thread() - before;
    usual = used;
    sleep_until(end);
    Time real = Clock::now();
    if (modelled.count() == 0) {
      end = real;
    } else if (used > modelled) {
      end = later(start, used);
    }
    free_ = end;
    profile().add({device_, stream_, kind, label, start, end});
    std::lock_guard lock(profile().mutex);
    profile().tasks += 1;
    profile().overruns += modelled.count() > 0 && used > modelled;
    profile().latest = std::max(profile().latest, Seconds(real - end));
  }

  // The lane's own clock: when the task at hand can begin. A thread that wakes up late makes up for it.
  Time now() const {
    return std::max(free_, ready_);
  }

 private:
  struct Waiting {
    std::string label;
    Task task;
    Time put;
  };

  void live() {
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1);  // wake up within microseconds, not within 50 of them
#endif
    at::set_num_threads(1);
    c10::InferenceMode without_autograd;  // so that it may write to what was made in one, too
    std::unique_lock lock(mutex_);
    started_ = true;
    changed_.notify_all();
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      {
        Waiting next = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        perform(next);
      }  // what the task has held is let go of before it counts as done
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  void perform(Waiting& next) {
    ready_ = next.put;
    try {
      next.task(*this);
    } catch (const c10::Error& error) {
      remember(next.label, error.what_without_backtrace());
    } catch (const std::exception& error) {
      remember(next.label, error.what());
    }
  }

  void remember(const std::string& label, const std::string& what) {
    remember_error(device_, c10::str("simgpu:", int(device_), ", ", label, ": ", what));
  }

  DeviceIndex device_;
  int64_t stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> tasks_;
  uint64_t put_ = 0;   // how many tasks there ever were
  uint64_t done_ = 0;  // and how many of them are done
  bool started_ = false;
  Time free_;   // when the last task was done
  Time ready_;  // when the host put the task at hand
  std::map<std::string, Seconds> usual_;
};

// ---- a device: its lanes and its copy engines

struct Lanes {
  std::mutex mutex;
  std::array<std::array<std::unique_ptr<Lane>, STREAMS + 1>, MOST_DEVICES> all;
  std::array<int, MOST_DEVICES> given{};
  // By device: what comes from the host, what goes to the host, what goes to another device.
  std::array<std::array<Engine, 3>, MOST_DEVICES> engines;
};

inline Lanes& lanes() {
  static auto* it = new Lanes;
  return *it;
}

inline thread_local DeviceIndex device_now = 0;
inline thread_local std::array<int64_t, MOST_DEVICES> stream_now{};

inline DeviceIndex index_of(Device device) {
  return device.index() < 0 ? device_now : device.index();
}

inline void check_device(DeviceIndex device) {
  int count = device_count();
  TORCH_CHECK(device >= 0 && device < count, "there is no simgpu:", int(device), ": ", count, " simulated device(s) were started");
}

inline Lane& lane(DeviceIndex device, int64_t stream) {
  refuse_in_a_fork();
  TORCH_CHECK(stream >= 0 && stream <= STREAMS, "simgpu:", int(device), " has no stream ", stream, ", but 0 to ", STREAMS);
  std::lock_guard lock(lanes().mutex);
  auto& found = lanes().all[device][stream];
  if (!found) {
    found = std::make_unique<Lane>(device, stream);
  }
  return *found;
}

inline Lane& lane(const Stream& stream) {
  return lane(stream.device_index(), stream.id());
}

inline Lane& current_lane(DeviceIndex device) {
  return lane(device, stream_now[device]);
}

inline int64_t next_stream(DeviceIndex device) {
  std::lock_guard lock(lanes().mutex);
  return 1 + lanes().given[device]++ % STREAMS;
}

inline void synchronize_device(DeviceIndex device) {
  refuse_in_a_fork();
  for (int64_t stream = 0; stream <= STREAMS; ++stream) {
    Lane* found;
    {
      std::lock_guard lock(lanes().mutex);
      found = lanes().all[device][stream].get();
    }
    if (found != nullptr) {
      found->synchronize();
    }
  }
}

inline bool all_idle() {
  std::lock_guard lock(lanes().mutex);
  for (auto& device : lanes().all) {
    for (auto& found : device) {
      if (found && !found->idle()) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace simulated
