// An open StreamResults with the decisions received on it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "wattwise.hpp"

class Stream {
 public:
  explicit Stream(wattwise::Client& client);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Does not wait. next() reports whether the server has ended the stream.
  void send(const wattwise::v1::StreamResultsRequest& request);
  // The next decision; nullopt once the stream has ended with OK. Throws wattwise::Error if an error ended it, and Mismatch
  // after 10 s without a message.
  std::optional<wattwise::v1::Decision> next();
  // Closes the sending side.
  void close();

 private:
  void receive();

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wattwise::v1::StreamResultsRequest, wattwise::v1::StreamResultsResponse>>
      call_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wattwise::v1::Decision> decisions_;
  std::optional<grpc::Status> end_;
  std::thread receiver_;
};
