package wattwise

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

const (
	// A change of the addresses restarts gRPC's backoff, so these grow while no server answers.
	shortestRotation = time.Second
	longestRotation  = 30 * time.Second
)

// destination is where a client connects to: one server, or several between which it may choose.
type destination struct {
	// target is what gRPC gets, and the authority of the calls.
	target string
	// servers are host:port each; for name, whatever it resolves to.
	servers []string
	name    bool
}

// parseAddress reads host:port, a list host:port,host:port, ipv4:a:port,b:port, ipv6:[a]:port,[b]:port and dns:///name:port.
func parseAddress(address string) (destination, error) {
	text, check := address, checkServer
	switch {
	case strings.HasPrefix(address, "unix:"), strings.HasPrefix(address, "unix-abstract:"):
		return destination{target: address}, nil
	case strings.HasPrefix(address, "dns:"):
		name := strings.TrimPrefix(strings.TrimPrefix(address, "dns:"), "///")
		own := strings.HasPrefix(name, "//")
		if slash := strings.LastIndexByte(name, '/'); own {
			name = name[slash+1:]
		}
		if why := checkServer(name); why != "" {
			return destination{}, malformed(address, name, why)
		}
		if own {
			// gRPC asks this name server.
			return destination{target: address, servers: []string{address}}, nil
		}
		return destination{target: "dns:///" + name, servers: []string{name}, name: true}, nil
	case strings.HasPrefix(address, "ipv4:"), strings.HasPrefix(address, "ipv6:"):
		scheme := address[:4]
		text, check = address[5:], func(server string) string { return checkIP(scheme, server) }
	}
	servers := strings.Split(text, ",")
	for _, server := range servers {
		if why := check(server); why != "" {
			return destination{}, malformed(address, server, why)
		}
	}
	return destination{target: servers[0], servers: servers}, nil
}

func malformed(address, server, why string) error {
	return fmt.Errorf("invalid server address '%s': '%s' %s; write host:port, such as localhost:50051, a list "+
		"host1:50051,host2:50051, or dns:///name:50051, without http://", address, server, why)
}

// checkServer returns what is wrong with host:port; empty: nothing.
func checkServer(server string) string {
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" || strings.ContainsAny(server, "/ \t\n") {
		return "is not host:port"
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "has no port from 1 to 65535"
	}
	return ""
}

func checkIP(scheme, server string) string {
	why := checkServer(server)
	host, _, _ := net.SplitHostPort(server)
	if ip := net.ParseIP(host); why == "" && (ip == nil || strings.Contains(host, ":") != (scheme == "ipv6")) {
		return "is not an " + scheme + " address with a port"
	}
	return why
}

// several returns whether there may be more than one server.
func (d destination) several() bool {
	return len(d.servers) > 1 || d.name
}

// dialer returns what connects to one server in gRPC's own way, and to one of several through the resolver below, each time
// to another one first.
func (d destination) dialer(options ...grpc.DialOption) func() (*grpc.ClientConn, error) {
	target := d.target
	if d.several() {
		builder := serversBuilder{d, &rotation{}}
		options = append(options, grpc.WithResolvers(builder))
		target = builder.Scheme() + ":///" + strings.TrimPrefix(d.target, "dns:///")
	}
	return func() (*grpc.ClientConn, error) { return grpc.Dial(target, options...) }
}

// rotation is the order of the servers, which changes with every use. It is shared by the connections of a client.
type rotation struct {
	mutex sync.Mutex
	order []resolver.Address
}

func (r *rotation) next(found []resolver.Address) []resolver.Address {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.order = reordered(r.order, found)
	return append([]resolver.Address(nil), r.order...)
}

// serversBuilder resolves a list of servers, or one name of several, to a random order of them, in which gRPC's pick_first
// tries them. Many releases of pick_first do not shuffle, and gRPC's own resolvers know no lists.
type serversBuilder struct {
	destination
	rotation *rotation
}

func (b serversBuilder) Scheme() string {
	return "wattwise"
}

func (b serversBuilder) Build(_ resolver.Target, conn resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &serversResolver{serversBuilder: b, conn: conn, again: make(chan struct{}, 1), cancel: cancel}
	r.done.Add(1)
	go r.run(ctx)
	return r, nil
}

type serversResolver struct {
	serversBuilder
	conn   resolver.ClientConn
	again  chan struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// ResolveNow is called when a connection ends or cannot be opened.
func (r *serversResolver) ResolveNow(resolver.ResolveNowOptions) {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

func (r *serversResolver) Close() {
	r.cancel()
	r.done.Wait()
}

// run gives gRPC the servers, each time with another one first: an old gRPC spends the whole time for a connection on the
// first one if that does not answer.
func (r *serversResolver) run(ctx context.Context) {
	defer r.done.Done()
	rest := shortestRotation
	for {
		start := time.Now()
		found, err := r.lookUp(ctx)
		if ctx.Err() != nil {
			return
		}
		if order := r.rotation.next(found); err != nil && len(order) == 0 {
			r.conn.ReportError(err)
		} else {
			r.conn.UpdateState(resolver.State{Addresses: order})
		}
		select {
		case <-ctx.Done():
			return
		case <-r.again:
		}
		if time.Since(start) > 2*longestRotation {
			rest = shortestRotation
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(start.Add(jittered(rest)))):
		}
		if rest *= 2; rest > longestRotation {
			rest = longestRotation
		}
	}
}

func (r *serversResolver) lookUp(ctx context.Context) (found []resolver.Address, err error) {
	if !r.name {
		for _, server := range r.servers {
			// The name in the certificate of this server, not of the first.
			host, _, _ := net.SplitHostPort(server)
			found = append(found, resolver.Address{Addr: server, ServerName: host})
		}
		return found, nil
	}
	host, port, _ := net.SplitHostPort(r.servers[0])
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %s: %w", host, err)
	}
	for _, ip := range ips {
		found = append(found, resolver.Address{Addr: net.JoinHostPort(ip, port), ServerName: host})
	}
	return found, nil
}

// reordered is the order of before with its first at the end, without what is gone, and with what is new in a random place.
func reordered(before, found []resolver.Address) []resolver.Address {
	if len(found) == 0 {
		found = before
	}
	var order []resolver.Address
	for i := range before {
		if one := before[(i+1)%len(before)]; containsAddress(found, one) {
			order = append(order, one)
		}
	}
	for _, one := range found {
		if !containsAddress(order, one) {
			place := randomBelow(len(order) + 1)
			order = append(order[:place], append([]resolver.Address{one}, order[place:]...)...)
		}
	}
	return order
}

func containsAddress(addresses []resolver.Address, address resolver.Address) bool {
	for _, one := range addresses {
		if one.Addr == address.Addr {
			return true
		}
	}
	return false
}
