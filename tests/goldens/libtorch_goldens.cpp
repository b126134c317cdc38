// Prints what libtorch's two distributed samplers yield; make_libtorch_goldens.py compiles this and stores the output.
//
// A line of input is one question, a line of output its answer:
//   deal  kind size num_replicas duplicates epoch   ->  the indices of rank 0 | rank 1 | ...
//   walk  kind size num_replicas rank duplicates script...   ->  one answer for each command of the script
// Commands: n<b> next(b) | i index() | e epoch() | E<x> set_epoch(x) | r reset() | R<n> reset(n)
//           s save, then go on with a new sampler that loaded the archive.

#include <torch/data/samplers/distributed.h>
#include <torch/serialize/archive.h>

#include <iostream>
#include <memory>
#include <sstream>
#include <string>

using torch::data::samplers::DistributedRandomSampler;
using torch::data::samplers::DistributedSequentialSampler;

void print(const std::vector<size_t>& indices) {
  for (size_t k = 0; k < indices.size(); ++k)
    std::cout << (k ? "," : "") << indices[k];
}

template <class Sampler>
void deal(std::istream& question) {
  size_t size, num_replicas, duplicates, epoch;
  question >> size >> num_replicas >> duplicates >> epoch;
  for (size_t rank = 0; rank < num_replicas; ++rank) {
    Sampler sampler(size, num_replicas, rank, duplicates != 0);
    sampler.set_epoch(epoch);
    sampler.reset();
    if (rank) std::cout << '|';
    if (auto indices = sampler.next(size + 1)) print(*indices);
  }
}

template <class Sampler>
void walk(std::istream& question) {
  size_t size, num_replicas, rank, duplicates;
  question >> size >> num_replicas >> rank >> duplicates;
  auto fresh = [&] { return std::make_unique<Sampler>(size, num_replicas, rank, duplicates != 0); };
  auto sampler = fresh();
  for (std::string command; question >> command; std::cout << ' ') {
    auto number = [&] { return static_cast<size_t>(std::stoull(command.substr(1))); };
    switch (command[0]) {
      case 'n':
        if (auto indices = sampler->next(number())) print(*indices);
        else std::cout << "none";
        break;
      case 'i': std::cout << sampler->index(); break;
      case 'e': std::cout << sampler->epoch(); break;
      case 'E': sampler->set_epoch(number()); std::cout << '-'; break;
      case 'r': sampler->reset(); std::cout << '-'; break;
      case 'R': sampler->reset(number()); std::cout << '-'; break;
      case 's': {
        std::stringstream stream;
        torch::serialize::OutputArchive saved;
        sampler->save(saved);
        saved.save_to(stream);
        torch::serialize::InputArchive loaded;
        loaded.load_from(stream);
        sampler = fresh();
        sampler->load(loaded);
        std::cout << '-';
      }
    }
  }
}

int main() {
  for (std::string line; std::getline(std::cin, line); std::cout << '\n') {
    std::istringstream question(line);
    std::string form, kind;
    question >> form >> kind;
    if (form == "deal" && kind == "random") deal<DistributedRandomSampler>(question);
    else if (form == "deal") deal<DistributedSequentialSampler>(question);
    else if (kind == "random") walk<DistributedRandomSampler>(question);
    else walk<DistributedSequentialSampler>(question);
  }
}
